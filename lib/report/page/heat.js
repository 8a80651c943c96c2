// The mesh as a heat map: one cell per rank, the rows of a stage next to each other, and a slider for time.

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
  ep: 'exposed ep transfers',
  dp: 'exposed dp transfers',
  bubble: 'bubble: waits for other stages',
  data: 'waits for data',
};

class HeatMap extends CellMap {
  constructor(heat, name) {
    const choice = element(
        'select', {
          'aria-label': 'Quantity',
          onchange: () => {
            this.quantity = heat.quantities[choice.selectedIndex];
            this.render();
          }
        },
        heat.quantities.map((q) => element('option', {}, kQuantityWords[q.name] || q.name)));
    const mesh = new RankGrid(heat.axes);
    super({
      label: `Heat map of the ranks of ${name}: arrow keys move from rank to rank`,
      count: mesh.ranks,
      slices: heat.slices.length,
      before: element('label', {}, 'Quantity ', choice),
      leastNumber: 40,
      mostFrames: 400
    });
    this.heat = heat;
    this.mesh = mesh;
    this.quantity = heat.quantities[0];
    this.decoded = new Map();
    this.slowest = element('div', {});
    this.figure.append(this.slowest);
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
  place(width) {
    const {pp, groups, tp} = this.mesh, labels = tp > 1 ? 62 : 34, inner = width - labels;
    const columns = Math.min(groups, Math.max(1, Math.floor(inner / 4)));
    const lines = Math.ceil(groups / columns);
    const perLine = Math.ceil(groups / lines);
    const side = Math.max(3, Math.floor(inner / perLine));  // makes cells fill the width
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
  cellAt(x, y) {
    const {pp, groups, tp} = this.mesh, grid = this.grid;
    const stage = Math.floor((y - grid.top) / grid.block);
    const row = Math.floor((y - grid.top - stage * grid.block) / grid.rowHeight);
    const line = Math.floor(row / tp), column = Math.floor((x - grid.labels) / grid.side);
    const group = line * grid.perLine + column;
    if (stage < 0 || stage >= pp || line >= grid.lines || column < 0 || column >= grid.perLine || group >= groups)
      return null;
    return this.mesh.rankAt({pp: stage, group, tp: row % tp});
  }

  // Counts through all cells, so that the neighbour beyond a border is in the next row or block.
  neighbour(rank, right, down) {
    const {groups, tp, ranks} = this.mesh, at = this.mesh.spotOf(rank);
    const next = ((at.pp * groups + at.group + right) * tp + at.tp + down + ranks) % ranks;
    return this.mesh.rankAt(
        {pp: Math.floor(next / (groups * tp)), group: Math.floor(next / tp) % groups, tp: next % tp});
  }
  timeText() {
    const [first, last, time] = this.heat.slices[this.slice];
    return `steps ${whole(first)} to ${whole(last)}, ${moment(time)}`;
  }
  colour(rank, pale) {
    const byte = this.bytes()[rank];
    return this.quantity.ratio ? ratioColour(byte, pale) : amountColour(byte);
  }
  marked(rank) { return this.quantity.ratio && this.slower(rank) >= kSlowRatio; }

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
    const pale = paleColour();
    const ticks = ratio ? (rate ? ['+20 %', '0', '−20 %'] : ['−20 %', '0', '+20 %']) : ['0', '', duration(most)];
    const bar = scaleBar(
        (at) => ratio ? ratioColour(128 + 127 * Math.log2(1 + kFullRatio) * at, pale) : amountColour(127.5 * (at + 1)),
        ticks);
    this.legend.replaceChildren(
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
