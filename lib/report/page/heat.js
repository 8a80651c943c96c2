// The mesh as a heat map: one cell per rank, the rows of a stage next to each other, and a slider for time.

// Ranks slower than the median of their role are orange to brown, faster ones blue, which needs no distinction of red
// and green. `pale` is the colour of the median.
const kFullRatio = 0.2;  // the difference from the median at which the colour is strongest
function ratioColour(byte, pale) {
  const power = (byte - 128) / 127, full = Math.log2(1 + kFullRatio);  // bytes encode powers of two
  const t = Math.max(-1, Math.min(1, power / full));
  const mix = (a, b, s) => a.map((v, i) => Math.round(v + (b[i] - v) * s));
  return t > 0 ? (t < 0.5 ? mix(pale, [240, 160, 70], 2 * t) : mix([240, 160, 70], [150, 50, 4], 2 * t - 1)) :
                 mix(pale, [20, 100, 180], -t);
}
// Returns the colour of the median's cells, which is close to the page's background in light and dark mode.
function paleColour() {
  const hex = getComputedStyle(document.documentElement).getPropertyValue('--cell').trim();
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}
const inkOn = ([r, g, b]) => (0.3 * r + 0.59 * g + 0.11 * b > 140 ? '#111111' : '#ffffff');
const kCividis =
    [[0, 32, 77], [46, 67, 110], [87, 93, 109], [125, 124, 120], [166, 157, 117], [209, 194, 94], [253, 231, 55]];
function amountColour(byte) {
  const at = byte / 255 * (kCividis.length - 1), i = Math.min(kCividis.length - 2, Math.floor(at));
  return kCividis[i].map((v, k) => Math.round(v + (kCividis[i + 1][k] - v) * (at - i)));
}
const kSlowRatio = 1.1;  // ranks above this multiple of the median of their role are marked and named

const kQuantityWords = {
  compute: 'compute (forward and backward)',
  forward: 'forward',
  backward: 'backward',
  rate: 'rate of its GEMMs: model FLOPs over compute',
  launch_skew: 'launch skew of the gradients\' reduction',
  tp: 'exposed tp transfers',
  cp: 'exposed cp transfers',
  dp: 'exposed dp transfers',
  bubble: 'bubble: waits for other stages',
  data: 'waits for data',
};

function decode(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

class HeatMap {
  constructor(heat, name) {
    this.heat = heat;
    this.mesh = new RankGrid(heat.axes);
    this.quantity = heat.quantities[0];
    this.slice = heat.slices.length - 1;
    this.rank = null;
    this.decoded = new Map();
    this.canvas = element('canvas', {
      tabindex: 0,
      role: 'img',
      'aria-label': `Heat map of the ranks of ${name}: arrow keys move from rank to rank`
    });
    this.readout = element('div', {class: 'readout', 'aria-live': 'polite'});
    this.slider = element('input', {
      type: 'range',
      class: 'screen-only',
      min: 0,
      max: heat.slices.length - 1,
      value: this.slice,
      'aria-label': 'Time',
      oninput: () => {
        this.slice = Number(this.slider.value);
        this.render();
      }
    });
    this.when = element('span', {});
    const choice = element(
        'select', {
          'aria-label': 'Quantity',
          onchange: () => {
            this.quantity = heat.quantities[choice.selectedIndex];
            this.render();
          }
        },
        heat.quantities.map((q) => element('option', {}, kQuantityWords[q.name] || q.name)));
    this.scale = element('div', {class: 'legend'});
    this.slowest = element('div', {});
    this.figure = element(
        'figure', {}, element('div', {class: 'bar'}, element('label', {}, 'Quantity ', choice), this.slider, this.when),
        this.canvas, this.readout, this.scale, this.slowest);
    this.canvas.addEventListener('pointermove', (event) => this.point(event));
    this.canvas.addEventListener('pointerleave', () => {
      this.rank = null;
      this.say();
      this.paint();
    });
    this.canvas.addEventListener('keydown', (event) => this.key(event));
    draws(this);
    new ResizeObserver(() => {
      if (this.canvas.clientWidth !== this.width) requestAnimationFrame(() => this.render());
    }).observe(this.figure);
  }

  bytes() {
    const text = this.quantity.bytes[this.slice];
    if (!this.decoded.has(text)) this.decoded.set(text, decode(text));
    return this.decoded.get(text);
  }
  slower(rank) { return 2 ** ((this.bytes()[rank] - 128) / 127); }
  amount(rank) {  // seconds per step, or TFLOP/s
    const {ratio, rate, most, medians} = this.quantity, {pp, tp} = this.mesh.spotOf(rank);
    if (!ratio) return this.bytes()[rank] / 255 * most;
    const middle = medians[this.slice][pp * this.mesh.tp + tp];
    return rate ? middle / this.slower(rank) : middle * this.slower(rank);
  }
  // Returns the text of a cell: the difference from its peers, such as "+3.1 %", or an amount.
  figureOf(rank) {
    const {ratio, rate} = this.quantity;
    if (!ratio) return rate ? counted(1e12 * this.amount(rank)) : duration(this.amount(rank));
    const more = 100 * ((rate ? 1 / this.slower(rank) : this.slower(rank)) - 1);
    return (more < 0 ? '−' : '+') + Math.abs(more).toFixed(1) + ' %';
  }
  nameOf(rank) {
    const of = (d) => d.names[d.ranks[rank]];
    const host = of(this.heat.hosts), gpu = of(this.heat.gpus);
    return this.mesh.nameOf(rank) + (host ? ' on ' + host : '') + (gpu ? ` (GPU ${gpu})` : '');
  }
  words(rank) {
    const {ratio, rate} = this.quantity, amount = this.amount(rank);
    const text = this.nameOf(rank) + ': ' + (rate ? counted(1e12 * amount) + 'FLOP/s' : duration(amount));
    if (!ratio) return text;
    return text + `, ${(rate ? 1 / this.slower(rank) : this.slower(rank)).toFixed(2)} x the median of its peers`;
  }

  // Computes the positions of cells. Columns are groups, wrapped if they do not fit; rows are tp ranks; blocks of rows
  // are stages.
  layout(width) {
    const {pp, groups, tp} = this.mesh, labels = tp > 1 ? 62 : 34, inner = width - labels;
    const columns = Math.min(groups, Math.max(1, Math.floor(inner / 4)));
    const lines = Math.ceil(groups / columns);
    const perLine = Math.ceil(groups / lines);
    const side = Math.max(3, Math.min(420, Math.floor(inner / perLine)));  // makes cells fill the width
    const rows = Math.max(1, lines * tp), gap = 5;
    const rowHeight = Math.max(2, Math.min(30, side, Math.floor(640 / (pp * rows))));
    const top = lines === 1 ? 16 : 0;  // height of the column names
    return {
      labels,
      top,
      lines,
      perLine,
      side,
      rowHeight,
      block: rows * rowHeight + gap,
      height: top + pp * (rows * rowHeight + gap)
    };
  }
  cell(rank) {
    const {pp, group, tp} = this.mesh.spotOf(rank), grid = this.grid;
    const line = Math.floor(group / grid.perLine);
    return [
      grid.labels + (group % grid.perLine) * grid.side,
      grid.top + pp * grid.block + (line * this.mesh.tp + tp) * grid.rowHeight
    ];
  }
  rankAt(x, y) {
    const {pp, groups, tp} = this.mesh, grid = this.grid;
    const stage = Math.floor((y - grid.top) / grid.block);
    const row = Math.floor((y - grid.top - stage * grid.block) / grid.rowHeight);
    const line = Math.floor(row / tp), column = Math.floor((x - grid.labels) / grid.side);
    const group = line * grid.perLine + column;
    if (stage < 0 || stage >= pp || line >= grid.lines || column < 0 || column >= grid.perLine || group >= groups)
      return null;
    return this.mesh.rankAt({pp: stage, group, tp: row % tp});
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    this.rank = this.rankAt(
        (event.clientX - box.left) * this.width / box.width, (event.clientY - box.top) * this.grid.height / box.height);
    this.say();
    this.paint();
  }
  key(event) {
    const move = {ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1]}[event.key];
    if (event.key === 'Escape')
      this.rank = null;
    else if (move === undefined)
      return;
    else
      this.rank = this.rank === null ? 0 : this.neighbour(this.rank, ...move);
    event.preventDefault();
    this.say();
    this.paint();
  }
  // Counts through all cells, so that the neighbour beyond a border is in the next row or block.
  neighbour(rank, right, down) {
    const {groups, tp, ranks} = this.mesh, at = this.mesh.spotOf(rank);
    const next = ((at.pp * groups + at.group + right) * tp + at.tp + down + ranks) % ranks;
    return this.mesh.rankAt(
        {pp: Math.floor(next / (groups * tp)), group: Math.floor(next / tp) % groups, tp: next % tp});
  }
  say() { this.readout.textContent = this.rank === null ? '' : this.words(this.rank); }

  render() {
    this.width = this.canvas.clientWidth || this.width || 640;
    this.grid = this.layout(this.width);
    const [first, last, time] = this.heat.slices[this.slice];
    this.when.textContent = `steps ${whole(first)} to ${whole(last)}, ${moment(time)}`;
    this.slider.setAttribute('aria-valuetext', this.when.textContent);
    this.paint();
    this.explain();
    this.say();
  }

  paint() {
    if (!this.grid) return;
    const dense = window.devicePixelRatio || 1, {canvas, grid} = this, bytes = this.bytes();
    canvas.width = Math.round(this.width * dense);
    canvas.height = Math.round(grid.height * dense);
    canvas.style.height = grid.height + 'px';
    const pen = canvas.getContext('2d'), style = getComputedStyle(document.documentElement);
    pen.scale(dense, dense);
    pen.font = '11px system-ui, sans-serif';
    pen.fillStyle = style.getPropertyValue('--faint');
    this.paintNames(pen);
    const gap = grid.side >= 9 && grid.rowHeight >= 9 ? 1 : 0, pale = paleColour(), slow = [];
    const numbers = grid.side >= 40 && grid.rowHeight >= 15;
    pen.textAlign = 'center';
    for (let rank = 0; rank < bytes.length; ++rank) {
      const [x, y] = this.cell(rank),
                colour = this.quantity.ratio ? ratioColour(bytes[rank], pale) : amountColour(bytes[rank]);
      pen.fillStyle = `rgb(${colour.join()})`;
      pen.fillRect(x, y, grid.side - gap, grid.rowHeight - gap);
      if (numbers) {
        pen.fillStyle = inkOn(colour);
        pen.fillText(this.figureOf(rank), x + grid.side / 2, y + grid.rowHeight / 2 + 4);
      }
      if (this.quantity.ratio && this.slower(rank) >= kSlowRatio) slow.push([x, y]);
    }
    pen.textAlign = 'start';
    pen.strokeStyle = style.getPropertyValue('--ink');
    pen.lineWidth = 1.5;
    const around = grid.side < 9 ? 3 : 0;  // small cells need a wider frame to be visible
    if (slow.length <= 400)
      for (const [x, y] of slow) {
        pen.strokeRect(x - around, y - around, grid.side + 2 * around - gap, grid.rowHeight + 2 * around - gap);
      }
    if (this.rank !== null) {
      const [x, y] = this.cell(this.rank);
      pen.lineWidth = 2;
      pen.strokeRect(x - 2, y - 2, grid.side + 3, grid.rowHeight + 3);
    }
  }

  // Draws the names of stages and of as many tp ranks and groups as fit.
  paintNames(pen) {
    const {pp, groups, tp} = this.mesh, {grid} = this, least = 14;
    for (let stage = 0; stage < pp; ++stage) {
      const y = grid.top + stage * grid.block;
      pen.fillText('pp' + stage, 0, y + 10);
      const every = Math.max(1, Math.ceil(least / grid.rowHeight));
      for (let i = 0; tp > 1 && grid.lines === 1 && i < tp; i += every)
        pen.fillText('tp' + i, 34, y + i * grid.rowHeight + Math.min(grid.rowHeight / 2 + 4, 12));
    }
    const longest = this.mesh.nameOfGroup(groups - 1).length;
    const every = 2 ** Math.max(0, Math.ceil(Math.log2(8 * longest / grid.side)));
    for (let i = 0; grid.lines === 1 && i < groups; i += every)
      pen.fillText(this.mesh.nameOfGroup(i), grid.labels + i * grid.side, 11);
  }

  explain() {
    const {ratio, rate, most} = this.quantity, bytes = this.bytes();
    const pale = paleColour(), cells = [];
    for (let i = 0; i <= 20; ++i) {
      const byte = ratio ? 128 + 127 * Math.log2(1 + kFullRatio) * (i / 10 - 1) : 12.75 * i;
      const colour = ratio ? ratioColour(byte, pale) : amountColour(byte);
      cells.push(drawing('rect', {x: 10 * i, width: 10.5, height: 12, fill: `rgb(${colour.join()})`}));
    }
    const ticks = ratio ? (rate ? ['+20 %', '0', '−20 %'] : ['−20 %', '0', '+20 %']) : ['0', '', duration(most)];
    ticks.forEach(
        (text, i) =>
            cells.push(drawing('text', {x: 105 * i, y: 26, 'text-anchor': ['start', 'middle', 'end'][i]}, text)));
    const bar = drawing('svg', {viewBox: '0 0 210 30', class: 'scale', 'aria-hidden': 'true'}, cells);
    this.scale.replaceChildren(
        bar,
        ratio ?
            element(
                'span', {}, 'relative to the median of its peers; a frame marks ranks that are 10 % or more slower') :
            '');
    const slow = ratio ? [...bytes.keys()].filter((rank) => this.slower(rank) >= kSlowRatio) : [];
    const named = (ratio ? slow : [...bytes.keys()]).sort((a, b) => bytes[b] - bytes[a]).slice(0, 5);
    const head = ratio ? 'Ranks at least 10 % slower than the median of their peers in this slice of time: ' :
                         'The longest times in this slice of time: ';
    const count = ratio ? slow.length : named.length;
    this.slowest.replaceChildren(
        element('p', {}, head, count === 0 ? 'none.' : `${whole(count)}.`),
        named.length > 0 ? element('ul', {}, named.map((rank) => element('li', {}, this.words(rank)))) : '');
  }
}
