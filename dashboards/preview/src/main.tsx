// The page: /?dashboard=fleet&url=<Prometheus>&scrape=<s>&from=<s>&to=<s>, and what is chosen: &pod=...
import { GlobalStyles, PanelChrome } from '@grafana/ui';
import { ThemeContext, type DataFrame } from '@grafana/data';
import { createRoot } from 'react-dom/client';
import { eventsOf, framesOf, theme, type Event, type Range } from './data';
import { Drawn } from './panels';

const WIDTH = 1600, COLUMNS = 24, ROW = 38, GAP = 8;
const { dashboard: asked, url, from, to, scrape, ...chosen } = Object.fromEntries(new URLSearchParams(location.search));
const range: Range = { url, from: Number(from), to: Number(to), step: Number(scrape), scrape: Number(scrape), chosen };

interface Answers { dashboard: any; data: Map<number, DataFrame[]>; events: Event[] }

function App({ dashboard, data, events }: Answers) {
  const panels = dashboard.panels.filter((panel: any) => !panel.collapsed);
  const bottom = Math.max(...panels.map((panel: any) => panel.gridPos.y + panel.gridPos.h));
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div style={{ width: WIDTH, padding: GAP, background: theme.colors.background.canvas, color: theme.colors.text.primary }}>
        <div style={{ fontSize: 18, padding: '4px 0 8px' }}>
          {dashboard.title}
          {Object.entries(chosen).map(([name, value]) => (
            <span key={name} style={{ fontSize: 13, marginLeft: 16 }}>{name}: {value}</span>
          ))}
          <span style={{ color: theme.colors.text.secondary, fontSize: 13, marginLeft: 16 }}>
            preview drawn with Grafana&apos;s components, not Grafana
          </span>
        </div>
        <div style={{ position: 'relative', height: bottom * ROW }}>
          {panels.map((panel: any) => {
            const { x, y, w, h } = panel.gridPos;
            const width = (WIDTH - 2 * GAP) * (w / COLUMNS) - GAP, height = h * ROW - GAP;
            const style = { position: 'absolute', left: (WIDTH - 2 * GAP) * (x / COLUMNS), top: y * ROW, width, height } as const;
            if (panel.type === 'row') return <div key={panel.id} style={{ ...style, fontSize: 16, lineHeight: '30px' }}>{panel.title}</div>;
            return (
              <div key={panel.id} style={style}>
                <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
                  {(innerWidth, innerHeight) => (
                    <Drawn panel={panel} frames={data.get(panel.id)!} events={events} range={range} width={innerWidth} height={innerHeight} />
                  )}
                </PanelChrome>
              </div>
            );
          })}
        </div>
      </div>
    </ThemeContext.Provider>
  );
}

async function main() {
  const dashboard = await (await fetch(`/${asked}.json`)).json();
  const drawn = dashboard.panels.filter((panel: any) => panel.type !== 'row');
  const data = new Map<number, DataFrame[]>();
  const events = await eventsOf(dashboard, range);
  for (const panel of drawn) data.set(panel.id, await framesOf(panel, range));
  createRoot(document.getElementById('root')!).render(<App dashboard={dashboard} data={data} events={events} />);
  setTimeout(() => { document.title = 'drawn'; }, 3000); // the canvases are drawn after React is done
}

main().catch((error) => { document.title = `failed: ${error}`; });
