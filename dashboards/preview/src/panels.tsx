// Each kind of panel, drawn with the component that Grafana's own panel uses; a state timeline has none, so it is HTML.
import { dateTime, FieldType, getDisplayProcessor, getFieldDisplayName, type DataFrame, type Field } from '@grafana/data';
import { BarGauge, BigValue, BigValueColorMode, BigValueGraphMode, BigValueTextMode, Table, TimeSeries } from '@grafana/ui';
import { theme, type Event, type Range } from './data';

interface Place { panel: any; frames: DataFrame[]; events: Event[]; range: Range; width: number; height: number }

const numbers = (frames: DataFrame[]) =>
  frames.flatMap((frame) => frame.fields.filter((field) => field.type === FieldType.number).map((field) => ({ field, frame })));
const shown = (field: Field, value: unknown) => getDisplayProcessor({ field, theme, timeZone: 'utc' })(value);
const last = (field: Field) => [...field.values].reverse().find((value) => value != null);

// Annotations: Grafana's marker is a dashed line with a triangle below it.
function mark(plot: any, events: Event[]) {
  const { ctx, bbox } = plot;
  for (const { time, colour } of events) {
    const x = plot.valToPos(time * 1000, 'x', true);
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour;
    ctx.setLineDash([4, 4]);
    ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
    ctx.beginPath(); ctx.moveTo(x, bbox.top + bbox.height); ctx.lineTo(x - 5, bbox.top + bbox.height + 7);
    ctx.lineTo(x + 5, bbox.top + bbox.height + 7); ctx.fill();
    ctx.restore();
  }
}

function Lines({ panel, frames, events, range, width, height }: Place) {
  const timeRange = { from: dateTime(range.from * 1000), to: dateTime(range.to * 1000), raw: { from: '', to: '' } };
  return (
    <TimeSeries frames={frames} timeRange={timeRange} timeZone="utc" width={width} height={height}
      legend={panel.options.legend} options={panel.options}>
      {(builder) => { builder.addHook('draw', (plot) => mark(plot, events)); return null; }}
    </TimeSeries>
  );
}

function Numbers({ panel, frames, width, height }: Place) {
  const found = numbers(frames);
  const named = panel.options.textMode === 'value_and_name';
  return (
    <div style={{ display: 'flex', width, height }}>
      {found.map(({ field, frame }) => {
        const name = getFieldDisplayName(field, frame, frames);
        const value = { ...shown(field, last(field)), title: named ? name : undefined };
        return <BigValue key={name} value={value} width={width / found.length} height={height} theme={theme}
          textMode={named ? BigValueTextMode.ValueAndName : BigValueTextMode.Value}
          colorMode={BigValueColorMode.Value} graphMode={BigValueGraphMode.None} />;
      })}
    </div>
  );
}

function Bars({ panel, frames, width, height }: Place) {
  const found = numbers(frames);
  const most = Math.max(...found.map(({ field }) => last(field)));
  const longest = (texts: string[]) => texts.reduce((a, b) => (b.length > a.length ? b : a), '');
  const room = {
    title: longest(found.map(({ field, frame }) => getFieldDisplayName(field, frame, frames))),
    text: longest(found.map(({ field }) => shown(field, last(field)).text)),
  };
  return (
    <div>
      {found.map(({ field, frame }) => {
        const name = getFieldDisplayName(field, frame, frames);
        field.config.max = field.config.max ?? most;
        return <BarGauge key={name} width={width} height={height / found.length - 6} theme={theme} itemSpacing={6}
          field={field.config} value={{ ...shown(field, last(field)), title: name }} orientation={panel.options.orientation}
          text={{ titleSize: 13, valueSize: 14 }} alignmentFactors={room} display={getDisplayProcessor({ field, theme })} displayMode={panel.options.displayMode} />;
      })}
    </div>
  );
}

function Rows({ panel, frames, width, height }: Place) {
  const sort = (panel.options.sortBy ?? []).map((by: any) => ({ displayName: by.displayName, desc: by.desc }));
  return <Table data={frames[0]} width={width} height={height} initialSortBy={sort} cellHeight={panel.options.cellHeight} />;
}

const Swatch = ({ colour, text }: { colour: string; text: string }) => (
  <span style={{ marginRight: 14 }}>
    <span style={{ display: 'inline-block', width: 14, height: 4, marginRight: 5, verticalAlign: 'middle', background: colour }} />
    {text}
  </span>
);

function Bands({ panel, frames, width, height }: Place) {
  const found = numbers(frames);
  const { mappings, thresholds } = panel.fieldConfig.defaults;
  const legend: Array<{ text: string; color: string }> = mappings
    ? Object.values(mappings[0].options)
    : thresholds.steps.map((step: any, index: number) => {
        const at = (value: number) => `${Math.round(100 * value)} %`;
        return { color: step.color, text: index ? `${at(step.value)} and above` : `below ${at(thresholds.steps[1].value)}` };
      });
  const name = mappings ? 220 : 130, tall = Math.min(26, (height - 26) / found.length);
  return (
    <div style={{ fontSize: 12 }}>
      {found.map(({ field, frame }) => (
        <div key={getFieldDisplayName(field, frame, frames)} style={{ display: 'flex', height: tall }}>
          <div style={{ width: name, whiteSpace: 'nowrap', overflow: 'hidden', textOverflow: 'ellipsis', lineHeight: `${tall}px` }}>
            {getFieldDisplayName(field, frame, frames)}
          </div>
          <div style={{ display: 'flex', width: width - name - 4, padding: '2px 0' }}>
            {field.values.map((value, index) => (
              <div key={index} style={{ flex: 1, background: value == null ? 'none' : shown(field, value).color }} />
            ))}
          </div>
        </div>
      ))}
      <div style={{ marginTop: 4 }}>{legend.map((one) => <Swatch key={one.text} colour={one.color} text={one.text} />)}</div>
    </div>
  );
}

const KINDS: Record<string, (place: Place) => JSX.Element> =
  { timeseries: Lines, stat: Numbers, bargauge: Bars, table: Rows, 'state-timeline': Bands };

export function Drawn(place: Place) {
  const empty = !place.frames.some((frame) => frame.length);
  if (empty) {
    const size = place.panel.type === 'stat' ? 36 : 14;
    const colour = place.panel.type === 'stat' ? theme.colors.text.primary : theme.colors.text.secondary;
    return <div style={{ textAlign: 'center', lineHeight: `${place.height}px`, fontSize: size, color: colour }}>{place.panel.fieldConfig.defaults.noValue}</div>;
  }
  return KINDS[place.panel.type](place);
}
