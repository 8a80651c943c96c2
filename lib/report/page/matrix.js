// The waits between many ranks as a matrix, since hundreds of ranks would hide each other in the mesh in space. Rows
// are waiting ranks and columns are awaited ranks, both in rank order. With very many ranks, several share a cell.

const kMostCells = 256;  // along each side

class WaitMatrix {
  constructor(waits, mesh, name) {
    this.mesh = mesh;
    this.dump = waits.source === 'dump';
    this.size = mesh.ranks;
    this.share = Math.ceil(this.size / kMostCells);  // number of ranks per cell
    this.side = Math.ceil(this.size / this.share);
    this.cells = new Float64Array(this.side * this.side);
    for (const [waiter, awaited, , ms] of waits.edges) this.cells[this.cellOf(waiter, awaited)] += this.dump ? 1 : ms;
    this.most = this.cells.reduce((a, v) => Math.max(a, v), 0);
    this.chosen = null;
    this.canvas = element('canvas', {
      tabindex: 0,
      role: 'img',
      'aria-label': `${name}: rows wait for columns; arrow keys move from cell to cell, the longest are in the table`
    });
    this.readout = element('div', {class: 'readout', 'aria-live': 'polite'});
    this.figure = element('figure', {}, this.canvas, this.readout, this.scale());
    this.canvas.addEventListener('pointermove', (event) => {
      const box = this.canvas.getBoundingClientRect();
      const at = (v) => Math.floor((v - this.left) / this.unit);
      this.choose(at(event.clientX - box.left), at(event.clientY - box.top));
    });
    this.canvas.addEventListener('pointerleave', () => this.choose(-1, -1));
    this.canvas.addEventListener('keydown', (event) => {
      const move = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
      if (!move) return;
      event.preventDefault();
      const [x, y] = this.chosen || [0, 0], within = (v) => Math.max(0, Math.min(this.side - 1, v));
      this.choose(within(x + move[0]), within(y + move[1]));
    });
    draws(this);
    followWidth(this);
  }

  cellOf(waiter, awaited) { return Math.floor(waiter / this.share) * this.side + Math.floor(awaited / this.share); }
  ranksOf(i) {
    const first = i * this.share, last = Math.min(this.size, first + this.share) - 1;
    return first === last ? `rank ${first}` : `ranks ${first} to ${last}`;
  }
  amount(value) { return this.dump ? plural(value, 'wait') : duration(value / 1000) + ' per step'; }
  choose(x, y) {
    this.chosen = x >= 0 && y >= 0 && x < this.side && y < this.side ? [x, y] : null;
    this.readout.textContent = this.chosen === null ?
        '' :
        `${this.ranksOf(y)} waiting for ${this.ranksOf(x)}: ${this.amount(this.cells[y * this.side + x])}`;
    this.paint();
  }
  scale() {
    const cells = [];
    for (let i = 0; i <= 10; ++i)
      cells.push(drawing('rect', {x: 10 * i, width: 11, height: 12, style: `fill:${this.colour(i / 10)}`}));
    return element(
        'div', {class: 'legend'}, element('span', {}, 'rows wait for columns: none'),
        element(
            'span', {}, drawing('svg', {viewBox: '0 0 110 12', style: 'width:110px', 'aria-hidden': 'true'}, cells),
            this.amount(this.most)));
  }
  // Uses the heat map's colours from that of the median to that of the slowest rank.
  colour(share) {
    if (!(share > 0)) return 'var(--cell)';
    const power = Math.log2(1 + kFullRatio) * (0.25 + 0.75 * Math.sqrt(share));
    return rgb(ratioColour(128 + 127 * power, paleColour()));
  }

  render() {
    this.width = this.canvas.clientWidth || this.width || 640;
    this.left = 62;
    this.unit = Math.max(1, Math.min((this.width - this.left) / this.side, 640 / this.side));
    this.paint();
  }
  paint() {
    if (!this.unit) return;
    const {canvas, unit, left, side} = this, length = unit * side, height = left + length + 4;
    const pen = penOf(canvas, this.width, height), style = getComputedStyle(document.documentElement);
    pen.fillStyle = style.getPropertyValue('--cell');
    pen.fillRect(left, left, length, length);
    this.cells.forEach((value, i) => {
      if (value === 0) return;
      pen.fillStyle = this.colour(value / this.most);
      const size = Math.max(unit, 3);  // small cells stay visible
      pen.fillRect(left + (i % side) * unit, left + Math.floor(i / side) * unit, size, size);
    });
    this.paintStages(pen, style, length);
    if (this.chosen === null) return;
    pen.strokeStyle = style.getPropertyValue('--ink');
    pen.strokeRect(left + this.chosen[0] * unit - 1, left + this.chosen[1] * unit - 1, unit + 2, unit + 2);
  }
  paintStages(pen, style, length) {
    const pp = this.mesh.axis('pp'), {left} = this, apart = length * pp.stride / this.size;
    const runs = this.size / pp.stride;  // of ranks of the same stage
    pen.strokeStyle = style.getPropertyValue('--faint');
    pen.fillStyle = style.getPropertyValue('--faint');
    pen.lineWidth = 0.5;
    const every = Math.max(1, Math.ceil(30 / apart));
    for (let run = 0; run <= runs; ++run) {
      const at = left + run * apart;
      pen.beginPath();
      pen.moveTo(at, left);
      pen.lineTo(at, left + length);
      pen.moveTo(left, at);
      pen.lineTo(left + length, at);
      pen.stroke();
      if (run === runs || run % every !== 0) continue;
      pen.fillText('pp' + run % pp.size, at + 2, left - 6);
      pen.fillText('pp' + run % pp.size, left - 34, at + 12);
    }
    pen.fillText('waits for', left, left - 24);
    pen.fillText('waiting', 0, left - 6);
  }
}
