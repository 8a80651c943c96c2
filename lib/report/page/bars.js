// Stacked bars next to each other. Each bar shows the parts of one whole, every part with its own colour and hatch.

// {the simulator's name of a part: [tone, hatch, displayed name (the same as on the terminal), meaning]}
const kPredictedParts = {
  gemm: ['blue', 'plain', 'GEMMs', 'matrix multiplications, including those of recompute'],
  attention: ['violet', 'falling', 'attention', 'attention kernels'],
  memory_bound: ['dark', 'crossed', 'memory-bound kernels', 'norms, activations, casts, the loss'],
  tp_exposed: ['orange', 'rising', 'exposed tp transfers', 'transfers of tensor parallelism for which compute waits'],
  ep_exposed: ['brown', 'crossed', 'exposed ep transfers', 'transfers of rows to their experts and back'],
  pp_exposed: ['sky', 'falling', 'exposed pp transfers', 'transfers between stages for which compute waits'],
  dp_exposed:
      ['red', 'level', 'exposed dp transfers', 'sums of gradients and gathers of parameters for which compute waits'],
  bubble: ['yellow', 'dots', 'pipeline bubble', 'the stage waits for the work of other stages'],
  optimizer: ['green', 'crossed', 'optimizer', 'update of the parameters'],
  stragglers: ['pale', 'plain', 'stragglers', 'waits for machines that are slower than the others'],
  fixed: ['grey', 'falling', 'fixed (host and data)', 'the start of a step, data and logging'],
};
const partName = (name) => kPredictedParts[name][2];
const partLegend = (names) => legendOf(names, kPredictedParts, partName);

// options: title, bars [{head, feet: [text], parts {name: value}}], looks, format (of values), share (if true, every
// bar has the full height; otherwise heights are relative to the largest bar).
function barPlot(options) {
  const {title, bars, looks, format} = options;
  const names = Object.keys(looks).filter((name) => bars.some((bar) => bar.parts[name] > 0));
  const total = (bar) => names.reduce((sum, name) => sum + Math.max(0, bar.parts[name] || 0), 0);
  const most = options.share ? 1 : Math.max(...bars.map(total));
  const rows = Math.max(...bars.map((bar) => bar.feet.length));
  const size = {left: 62, slot: 74, bar: 50, top: 26, height: 230};
  const width = size.left + bars.length * size.slot + 10, height = size.top + size.height + 8 + 15 * rows;
  const y = (value) => size.top + size.height * (1 - value / most);
  const svg = drawing('svg', {
    viewBox: `0 0 ${width} ${height}`,
    preserveAspectRatio: 'xMinYMin',
    style: `max-width: ${width}px`,
    role: 'img',
    'aria-label': title + ': ' + bars.map((bar) => bar.feet.join(' ') + ' ' + bar.head).join('; ')
  });
  for (const value of ticks(0, most, 5))
    svg.append(
        drawing('line', {class: 'grid-line', x1: size.left, x2: width, y1: y(value), y2: y(value)}),
        drawing(
            'text', {x: size.left - 6, y: y(value) + 4, 'text-anchor': 'end'},
            options.share ? Math.round(100 * value) + ' %' : format(value)));
  const patterns = Object.fromEntries(names.map((name) => [name, hatch(looks[name])]));
  for (const name of names) svg.append(patterns[name][1]);
  bars.forEach((bar, i) => {
    const x = size.left + i * size.slot + (size.slot - size.bar) / 2, sum = total(bar);
    let below = 0;
    for (const name of names) {
      const seconds = Math.max(0, bar.parts[name] || 0), value = options.share ? seconds / sum : seconds;
      if (!(value > 0)) continue;
      svg.append(drawing(
          'rect', {
            x,
            y: y(below + value),
            width: size.bar,
            height: y(below) - y(below + value),
            fill: `url(#${patterns[name][0]})`
          },
          drawing('title', {}, `${partName(name)}: ${format(seconds)}, ${percent(seconds / sum)}`)));
      below += value;
    }
    const middle = x + size.bar / 2;
    svg.append(drawing('text', {x: middle, y: y(below) - 6, 'text-anchor': 'middle', class: 'head'}, bar.head));
    bar.feet.forEach(
        (text, row) => svg.append(
            drawing('text', {x: middle, y: size.top + size.height + 16 + 15 * row, 'text-anchor': 'middle'}, text)));
  });
  svg.append(drawing(
      'line', {class: 'axis', x1: size.left, x2: width, y1: size.top + size.height, y2: size.top + size.height}));
  return element(
      'figure', {}, element('figcaption', {}, element('h3', {}, title)), element('div', {class: 'across'}, svg),
      partLegend(names));
}
