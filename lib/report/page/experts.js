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

class ExpertMap {
  constructor(experts, name) {
    this.experts = experts;
    this.count = experts.experts;  // of a layer
    this.slice = experts.slices.length - 1;
    this.chosen = null;  // [row, expert]
    this.canvas = element('canvas', {
      tabindex: 0,
      role: 'img',
      'aria-label': `Heat map of the experts of ${name}: arrow keys move from expert to expert`
    });
    this.readout = element('div', {class: 'readout', 'aria-live': 'polite'});
    this.slider = element('input', {
      type: 'range',
      class: 'screen-only',
      min: 0,
      max: experts.slices.length - 1,
      value: this.slice,
      'aria-label': 'Time',
      oninput: () => {
        this.slice = Number(this.slider.value);
        this.render();
      }
    });
    this.when = element('span', {});
    const csv = csvButton(
        'Loads of experts',
        () => [['step', 'layer', 'expert', 'load'], ...this.bytes().reduce((rows, byte, i) => {
          rows.push([this.step(), experts.layers[Math.floor(i / this.count)], i % this.count, loadOf(byte).toFixed(3)]);
          return rows;
        }, [])]);
    this.table = element('div', {});
    this.figure = element(
        'figure', {}, element('div', {class: 'bar'}, this.slider, this.when, csv), this.canvas, this.readout,
        element('div', {class: 'legend'}));
    this.canvas.addEventListener('pointermove', (event) => {
      const box = this.canvas.getBoundingClientRect();
      this.choose(this.cellAt(
          (event.clientX - box.left) * this.width / box.width,
          (event.clientY - box.top) * this.grid.height / box.height));
    });
    this.canvas.addEventListener('pointerleave', () => this.choose(null));
    this.canvas.addEventListener('keydown', (event) => {
      const move = {ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0]}[event.key];
      if (event.key !== 'Escape' && !move) return;
      event.preventDefault();
      const within = (v, count) => Math.max(0, Math.min(count - 1, v)), [row, expert] = this.chosen || [0, -1];
      this.choose(move ? [within(row + move[0], experts.layers.length), within(expert + move[1], this.count)] : null);
    });
    draws(this);
    new ResizeObserver(() => {
      if (this.canvas.clientWidth !== this.width) requestAnimationFrame(() => this.render());
    }).observe(this.figure);
  }

  step() { return this.experts.slices[this.slice][0]; }
  bytes() { return [...decode(this.experts.bytes[this.slice])]; }
  load(row, expert) { return loadOf(this.now[row * this.count + expert]); }
  choose(cell) {
    this.chosen = cell;
    this.say();
    this.paint();
  }
  say() {
    if (this.chosen === null) return this.readout.replaceChildren();
    const [row, expert] = this.chosen;
    this.readout.textContent =
        `layer ${this.experts.layers[row]}, expert ${expert}: ${loadText(this.load(row, expert))}`;
  }

  // Computes the positions of cells. A layer's experts are wrapped if they do not fit.
  layout(width) {
    const layers = this.experts.layers.length, labels = 62, inner = width - labels;
    const lines = Math.ceil(this.count / Math.min(this.count, Math.max(1, Math.floor(inner / kLeastCell))));
    const perLine = Math.ceil(this.count / lines), side = inner / perLine;
    const rowHeight = Math.max(kLeastCell, Math.min(26, Math.floor(620 / (layers * lines))));
    const block = lines * rowHeight + (lines > 1 ? 3 : 0);
    return {labels, top: 16, lines, perLine, side, rowHeight, block, height: 18 + layers * block};
  }
  cell(row, expert) {
    const {labels, top, perLine, side, rowHeight, block} = this.grid;
    return [labels + (expert % perLine) * side, top + row * block + Math.floor(expert / perLine) * rowHeight];
  }
  cellAt(x, y) {
    const {labels, top, lines, perLine, side, rowHeight, block} = this.grid;
    const row = Math.floor((y - top) / block), line = Math.floor((y - top - row * block) / rowHeight);
    const column = Math.floor((x - labels) / side), expert = line * perLine + column;
    const inside = row >= 0 && row < this.experts.layers.length && line < lines && column >= 0 && column < perLine;
    return inside && expert < this.count ? [row, expert] : null;
  }

  render() {
    this.width = this.canvas.clientWidth || this.width || 640;
    this.grid = this.layout(this.width);
    this.now = this.bytes();
    const [step, time] = this.experts.slices[this.slice];
    this.when.textContent = `step ${whole(step)}, ${moment(time)}`;
    this.slider.setAttribute('aria-valuetext', this.when.textContent);
    this.paint();
    this.explain();
    this.list();
    this.say();
  }

  paint() {
    if (!this.grid) return;
    const dense = window.devicePixelRatio || 1, {canvas, grid, experts} = this, pale = paleColour();
    canvas.width = Math.round(this.width * dense);
    canvas.height = Math.round(grid.height * dense);
    canvas.style.height = grid.height + 'px';
    const pen = canvas.getContext('2d'), style = getComputedStyle(document.documentElement);
    pen.scale(dense, dense);
    pen.font = '11px system-ui, sans-serif';
    pen.fillStyle = style.getPropertyValue('--faint');
    this.paintNames(pen);
    const gap = grid.side >= 9 && grid.rowHeight >= 9 ? 1 : 0, numbers = grid.side >= 34 && grid.rowHeight >= 15;
    const high = [];
    pen.textAlign = 'center';
    for (let row = 0; row < experts.layers.length; ++row)
      for (let expert = 0; expert < this.count; ++expert) {
        const [x, y] = this.cell(row, expert), load = this.load(row, expert), colour = loadColour(load, pale);
        pen.fillStyle = `rgb(${colour.join()})`;
        pen.fillRect(x, y, grid.side - gap, grid.rowHeight - gap);
        if (load > kHighLoad) high.push([x, y]);
        if (load === 0) {
          pen.strokeStyle = inkOn(colour);
          pen.lineWidth = 1;
          pen.beginPath();
          pen.moveTo(x + 1, y + 1);
          pen.lineTo(x + grid.side - gap - 1, y + grid.rowHeight - gap - 1);
          pen.moveTo(x + grid.side - gap - 1, y + 1);
          pen.lineTo(x + 1, y + grid.rowHeight - gap - 1);
          pen.stroke();
        } else if (numbers) {
          pen.fillStyle = inkOn(colour);
          pen.fillText(load.toFixed(2), x + grid.side / 2, y + grid.rowHeight / 2 + 4);
        }
      }
    pen.textAlign = 'start';
    pen.strokeStyle = style.getPropertyValue('--ink');
    pen.lineWidth = 1.5;
    for (const [x, y] of high) pen.strokeRect(x, y, grid.side - gap, grid.rowHeight - gap);
    if (this.chosen === null) return;
    const [x, y] = this.cell(...this.chosen);
    pen.lineWidth = 2;
    pen.strokeRect(x - 1, y - 1, grid.side + 1, grid.rowHeight + 1);
  }
  // Draws the numbers of as many layers and experts as fit.
  paintNames(pen) {
    const {grid, experts} = this, every = Math.max(1, Math.ceil(13 / grid.block));
    for (let row = 0; row < experts.layers.length; row += every)
      pen.fillText('layer ' + experts.layers[row], 0, grid.top + row * grid.block + grid.block / 2 + 4);
    if (grid.lines > 1) return;
    const apart = 2 ** Math.max(0, Math.ceil(Math.log2(26 / grid.side)));
    for (let expert = 0; expert < this.count; expert += apart)
      pen.fillText(String(expert), grid.labels + expert * grid.side, 11);
  }

  explain() {
    const pale = paleColour(), cells = [];
    for (let i = 0; i <= 20; ++i)
      cells.push(drawing(
          'rect',
          {x: 10 * i, width: 10.5, height: 12, fill: `rgb(${loadColour(kFullLoad ** (i / 10 - 1), pale).join()})`}));
    [`1/${kFullLoad}`, '1', String(kFullLoad)].forEach(
        (text, i) =>
            cells.push(drawing('text', {x: 105 * i, y: 26, 'text-anchor': ['start', 'middle', 'end'][i]}, text)));
    this.figure.lastChild.replaceChildren(
        drawing('svg', {viewBox: '0 0 210 30', class: 'scale', 'aria-hidden': 'true'}, cells),
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
      const loads = this.now.slice(row * this.count, (row + 1) * this.count);
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
    const legend = `${whole(layers.length)} layers of ${whole(map.count)} experts: rows are layers, columns experts. ` +
        `Loads are those of single steps, ${whole(slices.length)} of which are shown.`;
    return element('div', {}, absent(legend), map.figure, map.table, expertCurves(run.experts));
  });
}
