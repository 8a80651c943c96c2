// The parts of a whole over time as stacked areas. Every part has a colour and a hatch. The legend lists the parts in
// the order of the areas.

const kHatchPaths = {
  plain: '',
  rising: 'M-2 2L2 -2M0 8L8 0M6 10L10 6',
  falling: 'M-2 6L2 10M0 0L8 8M6 -2L10 2',
  level: 'M0 4H8',
  upright: 'M4 0V8',
  crossed: 'M0 4H8M4 0V8',
  dots: 'M3 4h2',
};
// {name of a part: [tone (page.css), hatch]}
const kStepParts = {
  compute: ['blue', 'plain'],
  tp: ['orange', 'rising'],
  cp: ['violet', 'crossed'],
  ep: ['brown', 'crossed'],
  pp: ['sky', 'falling'],
  dp: ['red', 'level'],
  bubble: ['yellow', 'dots'],
  optimizer: ['green', 'crossed'],
  data: ['pink', 'upright'],
  other: ['grey', 'plain'],
};
const kWallParts = {
  productive: ['blue', 'plain'],
  repeated: ['red', 'rising'],
  checkpoint: ['green', 'crossed'],
  evaluation: ['sky', 'falling'],
  startup: ['orange', 'level'],
  load: ['yellow', 'dots'],
  detection: ['pink', 'upright'],
  diagnosis: ['violet', 'rising'],
  restart: ['brown', 'crossed'],
  queue: ['pale', 'dots'],
  stopped: ['grey', 'plain'],
  other: ['dark', 'falling'],
};
const toneOf = (look) => `var(--tone-${look[0]})`;

function hatch(look) {
  const id = 'hatch' + (++numIds), path = kHatchPaths[look[1]];
  return [
    id,
    drawing(
        'pattern', {id, width: 8, height: 8, patternUnits: 'userSpaceOnUse'},
        drawing('rect', {width: 8, height: 8, style: `fill:${toneOf(look)}`}),
        path ? drawing('path', {
          d: path,
          stroke: look[1] === 'dots' ? '#000a' : '#fffc',
          'stroke-width': look[1] === 'dots' ? 2 : 1.3
        }) :
               '')
  ];
}
// Creates a sample of a part's colour and hatch for legends and tables.
function swatch(look) {
  const [id, pattern] = hatch(look), area = drawing('rect', {width: 26, height: 12, fill: `url(#${id})`});
  return drawing('svg', {viewBox: '0 0 26 12', class: 'swatch', 'aria-hidden': 'true'}, pattern, area);
}
function legendOf(names, looks, label = (name) => name) {
  return element('div', {class: 'legend'}, names.map((name) => element('span', {}, swatch(looks[name]), label(name))));
}

// Creates a bar of {name: share} with its legend and figures.
function shareBar(shares, looks, describe) {
  const names = Object.keys(looks).filter((name) => shares[name] > 0);
  const svg = drawing('svg', {
    viewBox: '0 0 1000 26',
    preserveAspectRatio: 'none',
    height: 26,
    role: 'img',
    'aria-label': names.map(describe).join(', ')
  });
  let at = 0;
  for (const name of names) {
    const [id, pattern] = hatch(looks[name]);
    svg.append(
        pattern,
        drawing(
            'rect', {x: at, y: 0, width: 1000 * shares[name], height: 26, fill: `url(#${id})`},
            drawing('title', {}, describe(name))));
    at += 1000 * shares[name];
  }
  return element('figure', {}, svg);
}

const kColumns = 100, kColumnWidth = 7;  // of a stack: their number, and the least pixels; more could not be seen

// Returns at most `most` columns of a stack over values [first, end), as [{from, to (on the x axis), values
// {name: median}, sum}].
function stackColumns(xs, parts, names, [first, end], most = kColumns) {
  const count = Math.min(most, end - first), list = [];
  for (let c = 0; c < count; ++c) {
    const begin = first + Math.floor(c * (end - first) / count),
          next = first + Math.floor((c + 1) * (end - first) / count);
    const values = Object.fromEntries(names.map((name) => [name, median(parts[name].slice(begin, next)) || 0]));
    const sum = names.reduce((all, name) => all + values[name], 0);
    list.push({from: begin > 0 ? xs[begin - 1] : xs[0] - 1, to: xs[next - 1], values, sum});
  }
  return list;
}

// Creates a chart of stacked areas. Each column shows the medians of an equal number of values. Areas have no hatches
// and follow the order of the legend. options: title, view, xs (ascending), parts {name: values}, looks, format,
// share() -> whether to show shares of the whole, top ([top, most], if several stacks share an axis).
function stackPlot(options) {
  const {xs, parts, looks} = options, names = Object.keys(looks).filter((name) => parts[name]);
  let made = null, columns = [];
  const range = (domain) => {
    const fit = Math.max(10, Math.floor(made.width / kColumnWidth));
    columns = stackColumns(xs, parts, names, visible(xs, domain), Math.min(kColumns, fit));
    made.idle = '';
    if (options.share()) return [0, 1];
    const [top, most] = options.top || topOf(columns.map((column) => column.sum));
    if (most > top) made.idle = `Cut off: the highest value is ${options.format(most)}.`;
    return [0, top || 1];
  };
  const value = (column, name) => column.values[name] / (options.share() ? column.sum || 1 : 1);
  const draw = (frame) => {
    const below = new Float64Array(columns.length);
    for (const name of names) {
      const upper = [], lower = [];
      columns.forEach((column, c) => {
        const top = below[c] + value(column, name);
        for (const x of [column.from, column.to]) {
          upper.push(frame.x(x).toFixed(1) + ' ' + frame.y(top).toFixed(1));
          lower.push(frame.x(x).toFixed(1) + ' ' + frame.y(below[c]).toFixed(1));
        }
        below[c] = top;
      });
      if (upper.length === 0) continue;
      const d = 'M' + upper.join('L') + 'L' + lower.reverse().join('L') + 'Z';
      const style = `fill:${toneOf(looks[name])};stroke:var(--panel);stroke-width:.6`;
      frame.body.append(drawing('path', {d, style}, drawing('title', {}, name)));
    }
  };
  const read = (x) => {
    const column = columns.find((one) => x <= one.to) || columns[columns.length - 1];
    if (!column) return '';
    const all = names.filter((name) => column.values[name] > 0)
                    .map(
                        (name) => name + ' ' +
                            (options.share() ? percent(value(column, name)) : options.format(column.values[name])));
    const {format, label} = options.view, one = column.to - column.from <= 1;
    return `${label} ${one ? '' : format(column.from + 1) + ' to '}${format(column.to)}: ` + all.join(', ');
  };
  const extra = csvButton(
      options.title,
      () => [[options.view.label, ...names], ...xs.map((x, i) => [x, ...names.map((name) => parts[name][i])])]);
  made = new Plot({...options, extra, xs: () => xs, range, draw, read, format: options.format});
  const format = made.format;
  made.format = (v) => (options.share() ? Math.round(100 * v) + ' %' : format(v));
  return element('div', {}, made.figure, legendOf(names, looks));
}

// Creates a Gantt chart with one lane per attempt; if there are many attempts, several share a lane. options: view,
// begin, unit (seconds per unit of the x axis), intervals [[begin, end, name]] in seconds, attempts
// [{number, begin, end}], looks, format.
const kMostLanes = 16;
function lanesPlot(options) {
  const {view, intervals, attempts, looks} = options, count = Math.min(kMostLanes, attempts.length);
  const laneAt = (k) => Math.floor(k * count / attempts.length);
  const x = (time) => (time - options.begin) / options.unit;
  // The time between two attempts is shown in the lane of the later one.
  const laneOf = (end) => {
    const k = attempts.findIndex((attempt) => end <= attempt.end + 1e-3);
    return laneAt(k < 0 ? attempts.length - 1 : k);
  };
  const names = Array.from({length: count}, (_, lane) => {
    const of = attempts.filter((_, k) => laneAt(k) === lane).map((attempt) => attempt.number);
    return of.length > 1 ? `${of[0]}–${of[of.length - 1]}` : String(of[0]);
  });
  const draw = (frame) => {
    for (const [begin, end, name] of intervals) {
      if (x(end) < frame.domain[0] || x(begin) > frame.domain[1]) continue;
      const lane = laneOf(end), top = frame.y(count - lane - 0.1), bottom = frame.y(count - lane - 0.9);
      frame.body.append(drawing(
          'rect', {
            x: frame.x(x(begin)),
            width: Math.max(0.7, frame.x(x(end)) - frame.x(x(begin))),
            y: top,
            height: bottom - top,
            style: `fill:${toneOf(looks[name])}`
          },
          drawing('title', {}, `${name}, ${options.format(end - begin)}`)));
    }
  };
  const read = (at) => {
    const found = intervals.find(([begin, end]) => at >= x(begin) && at <= x(end));
    if (!found) return '';
    const [begin, end, name] = found;
    return `attempt ${names[laneOf(end)]}, ${view.label} ${view.format(at)}: ${name}, ${options.format(end - begin)}`;
  };
  return new Plot({
           ...options,
           xs: () => intervals.map(([begin]) => x(begin)),
           height: 42 + 22 * count,
           range: () => [0, count],
           levels: names.map((_, lane) => count - lane - 0.5),
           scale: (v) => '#' + names[Math.round(count - v - 0.5)],
           draw,
           read
         })
      .figure;
}
