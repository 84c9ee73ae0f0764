{{- define "ullage.labels" -}}
app.kubernetes.io/name: ullage
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* Not a default in values.yaml: Helm would join it with the labels that a user names. */}}
{{- define "ullage.selector" -}}
{{- . | default (dict "matchLabels" (dict "ullage.dev/enabled" "true")) | toYaml }}
{{- end }}
