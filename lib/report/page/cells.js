// What the heat maps of ranks and of experts share: coloured cells on a canvas, a slider for time, a readout of the
// chosen cell, and a scale.

// Values slower than the median, or above the mean, are orange to brown, others blue, which needs no distinction of red
// and green. `pale` is the colour in the middle.
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
const rgb = (colour) => `rgb(${colour.join()})`;

function decode(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

// Clears the canvas for pixels of the screen's density, and returns its pen.
function penOf(canvas, width, height) {
  const dense = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * dense);
  canvas.height = Math.round(height * dense);
  canvas.style.height = height + 'px';
  const pen = canvas.getContext('2d');
  pen.scale(dense, dense);
  pen.font = '11px system-ui, sans-serif';
  return pen;
}
// Calls render() when the canvas of a picture has another width.
function followWidth(picture) {
  new ResizeObserver(() => {
    if (picture.canvas.clientWidth !== picture.width) requestAnimationFrame(() => picture.render());
  }).observe(picture.figure);
}

// Creates the scale below a map: `colourAt` of -1 to 1, and the texts of its ends and its middle.
function scaleBar(colourAt, texts) {
  const cells = [];
  for (let i = 0; i <= 20; ++i)
    cells.push(drawing('rect', {x: 10 * i, width: 10.5, height: 12, fill: rgb(colourAt(i / 10 - 1))}));
  texts.forEach(
      (text, i) =>
          cells.push(drawing('text', {x: 105 * i, y: 26, 'text-anchor': ['start', 'middle', 'end'][i]}, text)));
  return drawing('svg', {viewBox: '0 0 210 30', class: 'scale', 'aria-hidden': 'true'}, cells);
}

// A map of `count` cells. Derived classes define, for the cell with index i at the time `slice`:
//   colour(i, pale), figureOf(i), marked(i), words(i); crossed(i), where a cell may be crossed out
//   place(width): {side, rowHeight, height, ...} in pixels; cell(i): [x, y]; cellAt(x, y): an index or null
//   neighbour(i, right, down); paintNames(pen); timeText(); explain(), which fills `legend` and what is below it
class CellMap {
  // `before` and `after`: what is next to the slider.
  // `mostFrames`: if more cells are marked, none has a frame.
  constructor({label, count, slices, before, after, leastNumber, mostFrames = Infinity}) {
    this.count = count;
    this.slice = slices - 1;
    this.chosen = null;
    this.leastNumber = leastNumber;  // width of a cell that has a number
    this.mostFrames = mostFrames;
    this.canvas = element('canvas', {tabindex: 0, role: 'img', 'aria-label': label});
    this.readout = element('div', {class: 'readout', 'aria-live': 'polite'});
    this.slider = element('input', {
      type: 'range',
      class: 'screen-only',
      min: 0,
      max: slices - 1,
      value: this.slice,
      'aria-label': 'Time',
      oninput: () => {
        this.slice = Number(this.slider.value);
        this.render();
      }
    });
    this.when = element('span', {});
    this.legend = element('div', {class: 'legend'});
    this.figure = element(
        'figure', {}, element('div', {class: 'bar'}, before || '', this.slider, this.when, after || ''), this.canvas,
        this.readout, this.legend);
    this.canvas.addEventListener('pointermove', (event) => {
      const box = this.canvas.getBoundingClientRect();
      this.choose(this.cellAt(
          (event.clientX - box.left) * this.width / box.width,
          (event.clientY - box.top) * this.grid.height / box.height));
    });
    this.canvas.addEventListener('pointerleave', () => this.choose(null));
    this.canvas.addEventListener('keydown', (event) => {
      const move = {ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1]}[event.key];
      if (event.key !== 'Escape' && !move) return;
      event.preventDefault();
      this.choose(!move ? null : this.chosen === null ? 0 : this.neighbour(this.chosen, ...move));
    });
    draws(this);
    followWidth(this);
  }

  crossed() { return false; }
  choose(i) {
    this.chosen = i;
    this.say();
    this.paint();
  }
  say() { this.readout.textContent = this.chosen === null ? '' : this.words(this.chosen); }

  render() {
    this.width = this.canvas.clientWidth || this.width || 640;
    this.grid = this.place(this.width);
    this.when.textContent = this.timeText();
    this.slider.setAttribute('aria-valuetext', this.when.textContent);
    this.paint();
    this.explain();
    this.say();
  }

  paint() {
    if (!this.grid) return;
    const {grid} = this, {side, rowHeight} = grid, style = getComputedStyle(document.documentElement);
    const pen = penOf(this.canvas, this.width, grid.height);
    pen.fillStyle = style.getPropertyValue('--faint');
    this.paintNames(pen);
    const gap = side >= 9 && rowHeight >= 9 ? 1 : 0, numbers = side >= this.leastNumber && rowHeight >= 15;
    const pale = paleColour(), marked = [];
    pen.textAlign = 'center';
    for (let i = 0; i < this.count; ++i) {
      const [x, y] = this.cell(i), colour = this.colour(i, pale);
      pen.fillStyle = rgb(colour);
      pen.fillRect(x, y, side - gap, rowHeight - gap);
      if (this.marked(i)) marked.push([x, y]);
      if (this.crossed(i)) {
        pen.strokeStyle = inkOn(colour);
        pen.lineWidth = 1;
        pen.beginPath();
        pen.moveTo(x + 1, y + 1);
        pen.lineTo(x + side - gap - 1, y + rowHeight - gap - 1);
        pen.moveTo(x + side - gap - 1, y + 1);
        pen.lineTo(x + 1, y + rowHeight - gap - 1);
        pen.stroke();
      } else if (numbers) {
        pen.fillStyle = inkOn(colour);
        pen.fillText(this.figureOf(i), x + side / 2, y + rowHeight / 2 + 4);
      }
    }
    pen.textAlign = 'start';
    pen.strokeStyle = style.getPropertyValue('--ink');
    pen.lineWidth = 1.5;
    const around = side < 9 ? 3 : 0;  // small cells need a wider frame to be visible
    if (marked.length <= this.mostFrames)
      for (const [x, y] of marked)
        pen.strokeRect(x - around, y - around, side + 2 * around - gap, rowHeight + 2 * around - gap);
    if (this.chosen === null) return;
    const [x, y] = this.cell(this.chosen);
    pen.lineWidth = 2;
    pen.strokeRect(x - 2, y - 2, side + 3, rowHeight + 3);
  }
}
