// What a panel asks Prometheus, and Grafana's data frames of what it answers.
import {
  applyFieldOverrides, createTheme, FieldConfigOptionsRegistry, FieldType, identityOverrideProcessor,
  renderLegendFormat, standardTransformers, standardTransformersRegistry, transformDataFrame,
  type DataFrame, type Field, type Labels,
} from '@grafana/data';
import { firstValueFrom } from 'rxjs';

export interface Range { url: string; from: number; to: number; step: number; scrape: number; chosen: Record<string, string> }
type Sample = [number, string];
interface Series { metric: Labels; values?: Sample[]; value?: Sample }

export const theme = createTheme({ colors: { mode: 'dark' } });
const TRANSFORMERS = [standardTransformers.mergeTransformer, standardTransformers.filterFieldsByNameTransformer,
  standardTransformers.organizeFieldsTransformer, standardTransformers.orderFieldsTransformer,
  standardTransformers.renameFieldsTransformer, standardTransformers.filterFieldsTransformer];
standardTransformersRegistry.setInit(() => TRANSFORMERS.map((t) => ({ id: t.id, name: t.name, transformation: async () => t }) as never));
const STANDARD = ['unit', 'min', 'max', 'decimals', 'mappings', 'thresholds', 'color', 'noValue', 'displayName'];
const CUSTOM = [
  'drawStyle', 'lineWidth', 'fillOpacity', 'showPoints', 'stacking', 'lineStyle', 'axisSoftMax', 'width', 'cellOptions',
];
const item = (id: string, isCustom: boolean) =>
  ({ id: isCustom ? `custom.${id}` : id, path: id, isCustom, process: identityOverrideProcessor, shouldApply: () => true });
const registry = new FieldConfigOptionsRegistry(
  () => [...STANDARD.map((id) => item(id, false)), ...CUSTOM.map((id) => item(id, true))] as never,
);

// As Grafana fills them in: what is not chosen is All; the rate interval is four scrapes, or a step and a scrape.
const fill = (expr: string, { from, to, step, scrape, chosen }: Range) =>
  expr.replaceAll('$__rate_interval', `${Math.max(4 * scrape, step + scrape)}s`).replaceAll('$__range', `${to - from}s`)
    .replaceAll('$__interval', `${step}s`).replace(/\$(\w+)/g, (_, name) => chosen[name] ?? '.*');

export async function ask(expr: string, range: Range, instant: boolean): Promise<Series[]> {
  const times = instant ? { time: range.to } : { start: range.from, end: range.to, step: range.step };
  const parameters = new URLSearchParams({ query: fill(expr, range), ...(times as object) });
  const answer = await (await fetch(`${range.url}/api/v1/query${instant ? '' : '_range'}?${parameters}`)).json();
  if (answer.status !== 'success') throw new Error(`${answer.error}: ${expr}`);
  return answer.data.result;
}

const field = (name: string, type: FieldType, values: unknown[], labels?: Labels): Field =>
  ({ name, type, values, config: {}, labels }) as Field;

function overTime(series: Series, target: any, range: Range): DataFrame {
  // A gap is a gap: every step has a place, those without a sample are null.
  const known = new Map(series.values!.map(([time, value]) => [Math.round(time), Number(value)]));
  const first = Math.round(series.values![0][0]) % range.step;
  const times = [];
  for (let time = range.from - (range.from % range.step) + first; time <= range.to; time += range.step) times.push(time);
  const name = renderLegendFormat(target.legendFormat, series.metric);
  const values = field(name, FieldType.number, times.map((time) => known.get(time) ?? null), series.metric);
  values.config = { displayNameFromDS: name };
  return { refId: target.refId, length: times.length, fields: [field('Time', FieldType.time, times.map((t) => t * 1000)), values] };
}

function now(series: Series, target: any): DataFrame {
  const name = target.legendFormat === '__auto' ? 'Value' : renderLegendFormat(target.legendFormat, series.metric);
  const values = field(name, FieldType.number, [Number(series.value![1])], series.metric);
  values.config = { displayNameFromDS: name };
  return { refId: target.refId, length: 1, fields: [field('Time', FieldType.time, [series.value![0] * 1000]), values] };
}

function tabular(series: Series[], target: any, several: boolean): DataFrame {
  const labels = [...new Set(series.flatMap((one) => Object.keys(one.metric)))].sort();
  const value = several ? `Value #${target.refId}` : 'Value';
  const fields = [
    field('Time', FieldType.time, series.map((one) => one.value![0] * 1000)),
    ...labels.map((label) => field(label, FieldType.string, series.map((one) => one.metric[label] ?? ''))),
    field(value, FieldType.number, series.map((one) => Number(one.value![1]))),
  ];
  return { refId: target.refId, length: series.length, fields };
}

// Prometheus' buckets are cumulative; the data source of Grafana takes each from the next, in order of their edges.
function plainBuckets(frames: DataFrame[]): DataFrame[] {
  const edge = (frame: DataFrame) => Number(frame.fields[1].labels!.le.replace('+Inf', 'Infinity'));
  const ordered = [...frames].sort((a, b) => edge(a) - edge(b));
  const counts = ordered.map((frame) => frame.fields[1].values[0]);
  ordered.forEach((frame, index) => { frame.fields[1].values = [counts[index] - (counts[index - 1] ?? 0)]; });
  return ordered;
}

export async function framesOf(panel: any, range: Range): Promise<DataFrame[]> {
  const answers: DataFrame[][] = await Promise.all(panel.targets.map(async (target: any) => {
    const series = await ask(target.expr, range, target.instant);
    if (target.format === 'table') return series.length ? [tabular(series, target, panel.targets.length > 1)] : [];
    if (target.instant) return series.map((one) => now(one, target));
    return series.map((one) => overTime(one, target, range));
  }));
  let frames = answers.flat();
  if (panel.targets[0].format === 'heatmap') frames = plainBuckets(frames);
  if (panel.transformations) frames = await firstValueFrom(transformDataFrame(panel.transformations, frames));
  return applyFieldOverrides({
    data: frames, fieldConfig: panel.fieldConfig, fieldConfigRegistry: registry, theme, timeZone: 'utc',
    replaceVariables: (text) => text,
  });
}

export interface Event { time: number; colour: string }

export async function eventsOf(dashboard: any, range: Range): Promise<Event[]> {
  const answers = await Promise.all(dashboard.annotations.list.map(async (annotation: any) => {
    const series = await ask(annotation.expr, range, false);
    return series.flatMap((one) => one.values!.map(([time]) => ({ time, colour: annotation.iconColor })));
  }));
  return answers.flat();
}
