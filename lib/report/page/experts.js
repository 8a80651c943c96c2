// The loads of experts as a heat map, one row per layer and one cell per expert, with a slider for time. Below it are a
// table of the layers, and the worst layers over time.

const kFullLoad = 4;   // the multiple of the mean load, or its inverse, at which the colour is strongest
const kHighLoad = 3;   // experts above this multiple are marked, as the run's own warning does
const kLeastCell = 3;  // pixels
// Bytes: 0 for no rows; 128 is the mean, and 32 more are twice as much.
const loadOf = (byte) => (byte === 0 ? 0 : 2 ** ((byte - 128) / 32));
const loadText = (load) => (load === 0 ? 'no rows' : digits(load, 2) + ' x the mean');
function loadColour(load, pale) {
  const power = Math.max(-1, Math.min(1, Math.log2(load) / Math.log2(kFullLoad)));
  return ratioColour(128 + 127 * Math.log2(1 + kFullRatio) * power, pale);
}

class ExpertMap extends CellMap {
  constructor(experts, name) {
    const csv = csvButton('Loads of experts', () => {
      const rows = [['step', 'layer', 'expert', 'load']];
      this.bytes().forEach(
          (byte, i) => rows.push([this.step(), this.layerOf(i), this.expertOf(i), loadOf(byte).toFixed(3)]));
      return rows;
    });
    super({
      label: `Heat map of the experts of ${name}: arrow keys move from expert to expert`,
      count: experts.layers.length * experts.experts,
      slices: experts.slices.length,
      after: csv,
      leastNumber: 34
    });
    this.experts = experts;
    this.ofLayer = experts.experts;
    this.table = element('div', {});
  }

  step() { return this.experts.slices[this.slice][0]; }
  bytes() { return decode(this.experts.bytes[this.slice]); }
  layerOf(i) { return this.experts.layers[Math.floor(i / this.ofLayer)]; }
  expertOf(i) { return i % this.ofLayer; }
  words(i) { return `layer ${this.layerOf(i)}, expert ${this.expertOf(i)}: ${loadText(this.now[i])}`; }
  colour(i, pale) { return loadColour(this.now[i], pale); }
  figureOf(i) { return this.now[i].toFixed(2); }
  marked(i) { return this.now[i] > kHighLoad; }
  crossed(i) { return this.now[i] === 0; }
  neighbour(i, right, down) { return (i + right + down * this.ofLayer + this.count) % this.count; }

  // Computes the positions of cells. A layer's experts are wrapped if they do not fit.
  place(width) {
    const layers = this.experts.layers.length, labels = 62, inner = width - labels;
    const lines = Math.ceil(this.ofLayer / Math.min(this.ofLayer, Math.max(1, Math.floor(inner / kLeastCell))));
    const perLine = Math.ceil(this.ofLayer / lines), side = inner / perLine;
    const rowHeight = Math.max(kLeastCell, Math.min(26, Math.floor(620 / (layers * lines))));
    const block = lines * rowHeight + (lines > 1 ? 3 : 0);
    return {labels, top: 16, lines, perLine, side, rowHeight, block, height: 18 + layers * block};
  }
  cell(i) {
    const {labels, top, perLine, side, rowHeight, block} = this.grid, expert = this.expertOf(i);
    const row = Math.floor(i / this.ofLayer);
    return [labels + (expert % perLine) * side, top + row * block + Math.floor(expert / perLine) * rowHeight];
  }
  cellAt(x, y) {
    const {labels, top, lines, perLine, side, rowHeight, block} = this.grid;
    const row = Math.floor((y - top) / block), line = Math.floor((y - top - row * block) / rowHeight);
    const column = Math.floor((x - labels) / side), expert = line * perLine + column;
    const inside = row >= 0 && row < this.experts.layers.length && line < lines && column >= 0 && column < perLine;
    return inside && expert < this.ofLayer ? row * this.ofLayer + expert : null;
  }

  timeText() {
    const [step, time] = this.experts.slices[this.slice];
    return `step ${whole(step)}, ${moment(time)}`;
  }
  render() {
    this.now = Array.from(this.bytes(), loadOf);
    super.render();
    this.list();
  }
  // Draws the numbers of as many layers and experts as fit.
  paintNames(pen) {
    const {grid, experts} = this, every = Math.max(1, Math.ceil(13 / grid.block));
    for (let row = 0; row < experts.layers.length; row += every)
      pen.fillText('layer ' + experts.layers[row], 0, grid.top + row * grid.block + grid.block / 2 + 4);
    if (grid.lines > 1) return;
    const apart = 2 ** Math.max(0, Math.ceil(Math.log2(26 / grid.side)));
    for (let expert = 0; expert < this.ofLayer; expert += apart)
      pen.fillText(String(expert), grid.labels + expert * grid.side, 11);
  }

  explain() {
    const pale = paleColour();
    this.legend.replaceChildren(
        scaleBar((at) => loadColour(kFullLoad ** at, pale), [`1/${kFullLoad}`, '1', String(kFullLoad)]),
        element(
            'span', {},
            `rows of an expert over the mean of its layer; a cross marks experts without rows, a frame those above ` +
                `${kHighLoad} x the mean`));
  }

  list() {
    const deadOnes = (loads) => {
      const dead = [...loads.keys()].filter((expert) => loads[expert] === 0), shown = 12;
      return dead.slice(0, shown).join(', ') + (dead.length > shown ? ', …' : '');
    };
    const rows = this.experts.balances[this.slice].map(([max, dead, entropy], row) => {
      const loads = this.now.slice(row * this.ofLayer, (row + 1) * this.ofLayer);
      const bad = (text, is) => element('span', {class: is ? 'alarm' : ''}, text);
      return [
        this.experts.layers[row], bad(max.toFixed(2) + ' x', max > kHighLoad), loads.indexOf(Math.max(...loads)),
        bad(whole(dead), dead > 0), deadOnes(loads), entropy.toFixed(3)
      ];
    });
    this.table.replaceChildren(
        element('h3', {}, `Balance of each layer at step ${whole(this.step())}`),
        element(
            'p', {class: 'faint'},
            'Largest load of an expert over the mean; experts without rows; entropy of the loads over that of equal ' +
                'loads.'),
        element(
            'div', {class: 'scroll'},
            table(
                [
                  number('layer'), number('largest load'), number('expert'), number('dead'), 'dead experts',
                  number('entropy')
                ],
                rows)));
  }
}

// Creates curves of the worst layers by step.
function expertCurves(all) {
  if (all.slices.length < 2) return '';
  const xs = all.slices.map(([step]) => step), view = makeView('step', (v) => whole(v), [xs[0], xs[xs.length - 1]], 1);
  const worst = (of, choose) => all.balances.map((layers) => choose(...layers.map((layer) => layer[of])));
  const plot = (title, mean) => curvePlot({
    title,
    view,
    zero: true,
    height: 130,
    format: (v) => digits(v, 3),
    curves: [{name: '', run: 0, dots: xs.length < 60, xs, mean}]
  });
  return element(
      'div', {class: 'grid'}, plot('Largest load of an expert over the mean, of all layers', worst(0, Math.max)),
      plot('Experts without rows, in all layers', worst(1, (...counts) => counts.reduce((sum, v) => sum + v, 0))),
      plot('Smallest entropy of a layer', worst(2, Math.min)));
}

function experts() {
  return oneEach((run, i) => {
    if (!run.experts)
      return absent('metrics.jsonl has no loads of experts: the model is dense, or metrics.experts_every is 0.');
    const map = new ExpertMap(run.experts, names[i]), {layers, slices} = run.experts;
    const legend =
        `${whole(layers.length)} layers of ${whole(map.ofLayer)} experts: rows are layers, columns experts. ` +
        `Loads are those of single steps, ${whole(slices.length)} of which are shown.`;
    return element('div', {}, absent(legend), map.figure, map.table, expertCurves(run.experts));
  });
}
