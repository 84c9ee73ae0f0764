{{- /* Made from deploy/fragment.yaml by deploy/build.py. */}}
{{- define "ullage.podLabels" -}}
ullage.dev/enabled: 'true'
{{- end }}
{{- define "ullage.initContainers" -}}
- name: ullage-install-hook
  image: {{ required "ullage: say which image" .image | quote }}
  args:
  - install-hook
  - /opt/ullage
  resources:
    requests:
      cpu: 200m
      memory: 256Mi
    limits:
      cpu: 200m
      memory: 256Mi
  securityContext:
    allowPrivilegeEscalation: false
    capabilities:
      drop:
      - ALL
    readOnlyRootFilesystem: true
    runAsGroup: 65532
    runAsNonRoot: true
    runAsUser: 65532
    seccompProfile:
      type: RuntimeDefault
  volumeMounts:
  - name: ullage-hook
    mountPath: /opt/ullage
- name: ullage
  image: {{ required "ullage: say which image" .image | quote }}
  restartPolicy: Always
  args:
  - serve
  - --host
  - 0.0.0.0
  env:
  - name: ULLAGE_DIR
    value: /run/ullage
  - name: POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: POD_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
  ports:
  - name: ullage
    containerPort: 9877
    protocol: TCP
  livenessProbe:
    httpGet:
      path: /livez
      port: ullage
    periodSeconds: 30
    timeoutSeconds: 10
    failureThreshold: 4
  resources:
    requests:
      cpu: 200m
      memory: 256Mi
    limits:
      cpu: 200m
      memory: 256Mi
  securityContext:
    allowPrivilegeEscalation: false
    capabilities:
      drop:
      - ALL
    readOnlyRootFilesystem: true
    runAsGroup: 65532
    runAsNonRoot: true
    runAsUser: 65532
    seccompProfile:
      type: RuntimeDefault
  volumeMounts:
  - name: ullage
    mountPath: /run/ullage
    readOnly: true
{{- end }}
{{- define "ullage.installHook" -}}
- name: ullage-install-hook
  image: {{ required "ullage: say which image" .image | quote }}
  args:
  - install-hook
  - /opt/ullage
  resources:
    requests:
      cpu: 200m
      memory: 256Mi
    limits:
      cpu: 200m
      memory: 256Mi
  securityContext:
    allowPrivilegeEscalation: false
    capabilities:
      drop:
      - ALL
    readOnlyRootFilesystem: true
    runAsGroup: 65532
    runAsNonRoot: true
    runAsUser: 65532
    seccompProfile:
      type: RuntimeDefault
  volumeMounts:
  - name: ullage-hook
    mountPath: /opt/ullage
{{- end }}
{{- define "ullage.container" -}}
- name: ullage
  image: {{ required "ullage: say which image" .image | quote }}
  args:
  - serve
  - --host
  - 0.0.0.0
  env:
  - name: ULLAGE_DIR
    value: /run/ullage
  - name: POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: POD_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
  ports:
  - name: ullage
    containerPort: 9877
    protocol: TCP
  livenessProbe:
    httpGet:
      path: /livez
      port: ullage
    periodSeconds: 30
    timeoutSeconds: 10
    failureThreshold: 4
  resources:
    requests:
      cpu: 200m
      memory: 256Mi
    limits:
      cpu: 200m
      memory: 256Mi
  securityContext:
    allowPrivilegeEscalation: false
    capabilities:
      drop:
      - ALL
    readOnlyRootFilesystem: true
    runAsGroup: 65532
    runAsNonRoot: true
    runAsUser: 65532
    seccompProfile:
      type: RuntimeDefault
  volumeMounts:
  - name: ullage
    mountPath: /run/ullage
    readOnly: true
{{- end }}
{{- define "ullage.env" -}}
- name: ULLAGE_DIR
  value: /run/ullage
- name: PYTHONPATH
  value: {{ prepend (compact (list .pythonpath)) "/opt/ullage" | join ":" | quote }}
{{- end }}
{{- define "ullage.volumeMounts" -}}
- name: ullage-hook
  mountPath: /opt/ullage
  readOnly: true
- name: ullage
  mountPath: /run/ullage
{{- end }}
{{- define "ullage.volumes" -}}
- name: ullage
  emptyDir:
    medium: Memory
    sizeLimit: 128Mi
- name: ullage-hook
  emptyDir:
    sizeLimit: 16Mi
{{- end }}
