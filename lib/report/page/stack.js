// Parts of a whole over time: areas one above the other. Every part has a colour and a hatch, and its name in the
// legend stands in the order of the areas.

const kHatchPaths = {
  plain: '',
  rising: 'M-2 2L2 -2M0 8L8 0M6 10L10 6',
  falling: 'M-2 6L2 10M0 0L8 8M6 -2L10 2',
  level: 'M0 4H8',
  upright: 'M4 0V8',
  crossed: 'M0 4H8M4 0V8',
  dots: 'M3 4h2',
};
const kStepParts = {
  compute: ['#0072b2', 'plain'],
  tp: ['#e69f00', 'rising'],
  pp: ['#56b4e9', 'falling'],
  dp: ['#d55e00', 'level'],
  bubble: ['#f0e442', 'dots'],
  optimizer: ['#009e73', 'crossed'],
  data: ['#cc79a7', 'upright'],
  other: ['#9aa0a6', 'plain'],
};
const kWallParts = {
  productive: ['#0072b2', 'plain'],
  repeated: ['#d55e00', 'rising'],
  checkpoint: ['#009e73', 'crossed'],
  evaluation: ['#56b4e9', 'falling'],
  startup: ['#e69f00', 'level'],
  load: ['#f0e442', 'dots'],
  detection: ['#cc79a7', 'upright'],
  diagnosis: ['#7a3b9a', 'rising'],
  restart: ['#a03000', 'crossed'],
  queue: ['#c8ced6', 'dots'],
  stopped: ['#9aa0a6', 'plain'],
  other: ['#666c73', 'falling'],
};

function hatch(look) {
  const id = 'hatch' + (++kHatches), path = kHatchPaths[look[1]];
  return [
    id,
    drawing(
        'pattern', {id, width: 8, height: 8, patternUnits: 'userSpaceOnUse'},
        drawing('rect', {width: 8, height: 8, fill: look[0]}),
        path ? drawing('path', {
          d: path,
          stroke: look[1] === 'dots' ? '#000a' : '#fffc',
          'stroke-width': look[1] === 'dots' ? 2 : 1.3
        }) :
               '')
  ];
}
function legendOf(names, looks) {
  return element('div', {class: 'legend'}, names.map((name) => {
    const [id, pattern] = hatch(looks[name]);
    return element(
        'span', {},
        drawing(
            'svg', {viewBox: '0 0 26 12', 'aria-hidden': 'true'}, pattern,
            drawing('rect', {width: 26, height: 12, fill: `url(#${id})`})),
        name);
  }));
}

// A bar of shares, {name: share}, with its legend and figures next to it.
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

// options: title, view, xs (rising), parts {name: values}, looks, format, share() -> whether of the whole, steps:
// whether values hold from their x to the next instead of at x.
function stackPlot(options) {
  const {xs, parts, looks} = options, names = Object.keys(looks).filter((name) => parts[name]);
  const totals = xs.map((_, i) => names.reduce((sum, name) => sum + (parts[name][i] || 0), 0));
  const shared = () => !options.share || options.share();
  let made = null;
  const range = (domain) => {
    made.idle = '';
    if (shared()) return [0, 1];
    const [top, most] = topOf(totals.slice(...visible(xs, domain)));
    if (most > top) made.idle = `Cut off: the highest value is ${options.format(most)}.`;
    return [0, top || 1];
  };
  const value = (name, i) => (parts[name][i] || 0) / (shared() ? totals[i] || 1 : 1);
  const draw = (frame) => {
    const [first, end] = visible(xs, frame.domain), below = new Float64Array(xs.length);
    for (const name of names) {
      const upper = [], lower = [];
      const point = (list, x, v) => list.push(frame.x(x).toFixed(1) + ' ' + frame.y(v).toFixed(1));
      for (let i = first; i < end; ++i) {
        const top = below[i] + value(name, i);
        for (const x of options.steps && i + 1 < xs.length ? [xs[i], xs[i + 1]] : [xs[i]]) {
          point(upper, x, top);
          point(lower, x, below[i]);
        }
        below[i] = top;
      }
      if (upper.length === 0) continue;
      const [id, pattern] = hatch(looks[name]);
      frame.body.append(
          pattern,
          drawing(
              'path', {d: 'M' + upper.join('L') + 'L' + lower.reverse().join('L') + 'Z', fill: `url(#${id})`},
              drawing('title', {}, name)));
    }
  };
  const read = (x) => {
    let i = nearestIndex(xs, x);
    if (options.steps && i > 0 && xs[i] > x) --i;
    if (i < 0) return '';
    const all = names.filter((name) => parts[name][i] > 0)
                    .map((name) => name + ' ' + (shared() ? percent(value(name, i)) : options.format(parts[name][i])));
    return options.view.label + ' ' + options.view.format(x) + ': ' + all.join(', ');
  };
  made = new Plot({...options, xs: () => xs, range, draw, read, format: options.format});
  const format = made.format;
  made.format = (v) => (shared() ? Math.round(100 * v) + ' %' : format(v));
  return element('div', {}, made.figure, legendOf(names, looks));
}
