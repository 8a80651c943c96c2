// Charts over a common x axis: curves and stacks. All charts of a view share a cursor, which the pointer or keys move.
// A view is {label, format, domain: [from, to], whole: [from, to], least: smallest distance of ticks, cursor, plots}.

const kMargin = {
  left: 58,
  right: 14,
  top: 16,
  bottom: 24
};
let numIds = 0;  // number of clip paths and hatches created so far, which makes their ids unique

function makeView(label, format, whole, least = 0) {
  return {label, format, whole, least, domain: whole, cursor: null, plots: [], domainChanged: () => {}};
}
function refresh(view) {
  for (const plot of view.plots) plot.render();
}
function setDomain(view, domain) {
  const part = domain && domain[1] > domain[0] && (domain[0] > view.whole[0] || domain[1] < view.whole[1]);
  view.domain = part ? domain : view.whole;
  refresh(view);
  view.domainChanged();
}
function setCursor(view, x) {
  view.cursor = x;
  for (const plot of view.plots) plot.showCursor();
}

// Returns the index of the value nearest to x in the ascending list `xs`, or -1 if the list is empty.
function nearestIndex(xs, x) {
  let low = 0, high = xs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x)
      low = middle + 1;
    else
      high = middle;
  }
  if (low > 0 && (low === xs.length || x - xs[low - 1] <= xs[low] - x)) --low;
  return xs.length === 0 ? -1 : low;
}
// Returns the range [first, end) of `xs` that lies within the domain, plus one neighbour on each side.
function visible(xs, domain) {
  let first = 0, end = xs.length;
  while (first < xs.length - 1 && xs[first + 1] < domain[0]) ++first;
  while (end > 1 && xs[end - 2] > domain[1]) --end;
  return [first, end];
}

// Returns [top, most] for an axis that begins at zero: the end of the axis and the largest value. If a few values, such
// as those of a first step, are far above all others, top is less than most, which cuts them off and keeps the rest
// readable. Of few values all are shown.
function topOf(values) {
  const sorted = Float64Array.from(values.filter(known)).sort();
  if (sorted.length === 0) return [1, 1];
  const most = sorted[sorted.length - 1], usual = sorted[Math.floor(0.95 * (sorted.length - 1))];
  return sorted.length >= 20 && usual > 0 && most > 3 * usual ? [1.5 * usual, most] : [most, most];
}

// A chart. options: title, view, height (less on paper, so that whole rows of charts fill a page), log, format (of y
// values), scale (format of y on the axis; default: format), levels (ticks of the y axis; default: round numbers), xs
// (ascending positions of the cursor), range(domain) -> [low, high], draw(frame), read(x) -> text. frame: {svg,
// x(value), y(value), domain, width, height}.
class Plot {
  constructor(options) {
    Object.assign(this, {height: 190, log: false, format: (v) => digits(v, 4)}, options);
    this.onScreen = this.height;
    this.readout = element('div', {class: 'readout', 'aria-live': 'polite'});
    this.svg = drawing('svg', {tabindex: 0, role: 'img', 'aria-label': this.title + ': arrow keys move the cursor'});
    this.caption = element('figcaption', {}, element('h3', {}, this.title), options.extra);
    this.figure = element('figure', {class: options.wide ? 'wide' : ''}, this.caption, this.readout, this.svg);
    this.view.plots.push(this);
    draws(this);
    this.width = 0;
    new ResizeObserver(() => {
      const width = Math.round(this.svg.clientWidth);
      if (width > 0 && Math.abs(width - this.width) > 1) requestAnimationFrame(() => this.render());
    }).observe(this.figure);
    this.listen();
  }

  at(event) {  // returns the x value under the pointer
    const box = this.svg.getBoundingClientRect(), inner = this.width - kMargin.left - kMargin.right;
    const share = ((event.clientX - box.left) / box.width * this.width - kMargin.left) / inner;
    const [low, high] = this.view.domain;
    return low + Math.min(1, Math.max(0, share)) * (high - low);
  }

  listen() {
    const view = this.view;
    let from = null;
    this.svg.addEventListener('pointermove', (event) => {
      setCursor(view, this.at(event));
      if (from !== null && this.brush) {
        const x = [from, this.at(event)].map((v) => this.frame.x(v)).sort((a, b) => a - b);
        this.brush.setAttribute('x', x[0]);
        this.brush.setAttribute('width', x[1] - x[0]);
      }
    });
    this.svg.addEventListener('pointerleave', () => {
      if (from === null) setCursor(view, null);
    });
    this.svg.addEventListener('pointerdown', (event) => {
      if (event.button !== 0 || event.pointerType === 'touch') return;
      from = this.at(event);
      this.svg.setPointerCapture(event.pointerId);
      this.brush = drawing('rect', {
        class: 'brush',
        y: kMargin.top,
        x: this.frame.x(from),
        width: 0,
        height: this.height - kMargin.top - kMargin.bottom
      });
      this.svg.append(this.brush);
    });
    this.svg.addEventListener('pointerup', (event) => {
      if (from === null) return;
      const part = [from, this.at(event)].sort((a, b) => a - b);
      from = null;
      this.brush.remove();
      if (this.frame.x(part[1]) - this.frame.x(part[0]) > 5) setDomain(view, part);
    });
    this.svg.addEventListener('dblclick', () => setDomain(view, null));
    this.svg.addEventListener('keydown', (event) => this.key(event));
  }

  key(event) {
    const xs = this.xs(), view = this.view;
    if (event.key === 'Escape') {
      setCursor(view, null);
      setDomain(view, null);
      return;
    }
    if (event.key === '+' || event.key === '-') {
      const [low, high] = view.domain, middle = view.cursor === null ? (low + high) / 2 : view.cursor;
      const by = event.key === '+' ? 0.5 : 2;
      const part = [middle - (middle - low) * by, middle + (high - middle) * by];
      setDomain(view, [Math.max(part[0], view.whole[0]), Math.min(part[1], view.whole[1])]);
      return;
    }
    const [first, end] = visible(xs, view.domain), stride = event.shiftKey ? Math.ceil((end - first) / 20) : 1;
    const here = view.cursor === null ? first : nearestIndex(xs, view.cursor);
    const moves = {ArrowLeft: here - stride, ArrowRight: here + stride, Home: first, End: end - 1};
    if (!(event.key in moves) || xs.length === 0) return;
    event.preventDefault();
    setCursor(view, xs[Math.min(xs.length - 1, Math.max(0, moves[event.key]))]);
  }

  render() {
    const width = Math.round(this.svg.clientWidth) || this.width || 640;
    const height = onPaper() ? Math.min(this.onScreen, Math.max(150, 0.8 * this.onScreen)) : this.onScreen;
    this.width = width;
    this.height = height;
    const domain = this.view.domain;
    const inner = {x: width - kMargin.left - kMargin.right, y: height - kMargin.top - kMargin.bottom};
    let [low, high] = this.range(domain);
    const log = this.log && low > 0;
    if (!(high > low)) {
      const by = Math.abs(low) * 0.05 || 1;
      low -= by;
      high += by;
    }
    const scale = log ? Math.log : (v) => v;
    const frame = {
      svg: this.svg,
      domain,
      width,
      height,
      log,
      x: (v) => kMargin.left + (v - domain[0]) / (domain[1] - domain[0]) * inner.x,
      y: (v) => kMargin.top + (1 - (scale(v) - scale(low)) / (scale(high) - scale(low))) * inner.y,
    };
    this.frame = frame;
    this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.svg.replaceChildren();
    this.axes(frame, this.levels || (log ? logTicks(low, high) : ticks(low, high, Math.max(2, inner.y / 36))));
    const name = 'clip' + (++numIds);
    this.svg.append(drawing(
        'clipPath', {id: name},
        drawing(
            'rect', {x: kMargin.left - 4, y: kMargin.top - 4, width: Math.max(1, inner.x + 8), height: inner.y + 8})));
    frame.body = drawing('g', {'clip-path': `url(#${name})`});
    this.svg.append(frame.body);
    this.draw(frame);
    this.line = drawing('line', {class: 'cursor', y1: kMargin.top, y2: height - kMargin.bottom, visibility: 'hidden'});
    this.svg.append(this.line);
    this.showCursor();
  }

  axes(frame, levels) {
    const bottom = this.height - kMargin.bottom;
    let named = Infinity;
    for (const value of levels) {
      const y = frame.y(value);
      if (Math.abs(named - y) < 12) continue;  // its text would cover the last one
      named = y;
      this.svg.append(
          drawing('line', {class: 'grid-line', x1: kMargin.left, x2: frame.width - kMargin.right, y1: y, y2: y}),
          drawing('text', {x: kMargin.left - 6, y: y + 4, 'text-anchor': 'end'}, (this.scale || this.format)(value)));
    }
    const places = ticks(frame.domain[0], frame.domain[1], Math.max(2, frame.width / 110), this.view.least);
    for (const value of places) {
      const x = frame.x(value), text = this.view.format(value), atEnd = x + 4 * text.length > frame.width;
      this.svg.append(
          drawing('line', {class: 'axis', x1: x, x2: x, y1: bottom, y2: bottom + 4}),
          drawing(
              'text', {x: atEnd ? frame.width - 1 : x, y: bottom + 17, 'text-anchor': atEnd ? 'end' : 'middle'}, text));
    }
    this.svg.append(drawing('text', {x: 0, y: bottom + 17}, this.view.label));
    this.svg.append(
        drawing('line', {class: 'axis', x1: kMargin.left, x2: frame.width - kMargin.right, y1: bottom, y2: bottom}));
  }

  showCursor() {
    if (!this.line) return;
    const x = this.view.cursor, [low, high] = this.view.domain;
    const seen = x !== null && x >= low && x <= high;
    this.line.setAttribute('visibility', seen ? 'visible' : 'hidden');
    if (seen)
      for (const end of ['x1', 'x2']) this.line.setAttribute(end, this.frame.x(x));
    this.readout.textContent = seen ? this.read(x) : this.idle || '';
  }
}

function pathOf(xs, ys, frame, first, end) {
  let path = '', pen = false;
  for (let i = first; i < end; ++i) {
    if (!known(ys[i]) || (frame.log && ys[i] <= 0)) {
      pen = false;
      continue;
    }
    path += (pen ? 'L' : 'M') + frame.x(xs[i]).toFixed(1) + ' ' + frame.y(ys[i]).toFixed(1);
    pen = true;
  }
  return path;
}
function bandOf(xs, lows, highs, frame, first, end) {
  let path = '';
  for (let from = first; from < end; ++from) {
    if (!known(lows[from]) || !known(highs[from])) continue;
    let to = from;
    while (to < end && known(lows[to]) && known(highs[to])) ++to;
    const at = (i, v) =>
        frame.x(xs[i]).toFixed(1) + ' ' + frame.y(Math.max(v, frame.log ? 1e-12 : -Infinity)).toFixed(1);
    path += 'M' + at(from, highs[from]);
    for (let i = from + 1; i < to; ++i) path += 'L' + at(i, highs[i]);
    for (let i = to - 1; i >= from; --i) path += 'L' + at(i, lows[i]);
    path += 'Z';
    from = to;
  }
  return path;
}

const kDashes = ['', '7 3', '2 3', '9 3 2 3', '12 4', '4 2 1 2 1 2', '1 3', '14 3 3 3'];
const runColour = (i) => `var(--run-${i % 8})`;

// Returns running medians over `width` points, which single outliers do not affect.
function smoothed(values, width) {
  const half = width >> 1;
  if (half < 1) return values;
  return values.map((value, i) => {
    if (!known(value)) return value;
    const near = values.slice(Math.max(0, i - half), i + half + 1).filter(known).sort((a, b) => a - b);
    return (near[(near.length - 1) >> 1] + near[near.length >> 1]) / 2;
  });
}

// The kinds of marks on the x axis: a shape with y from 0 to 10 around x = 0, and the name in the legend.
const kMarks = {
  crash: {d: 'M-5 0L5 10M5 0L-5 10', alarm: true, stroke: true, line: true, word: 'crash'},
  stop: {d: 'M-4 0H-1V10H-4zM1 0H4V10H1z', line: true, word: 'stopped, to be resumed'},
  end: {d: 'M-5 0H5V10H-5z', word: 'planned end'},
  resume: {d: 'M-5 0L5 5L-5 10z', word: 'resumed from a checkpoint'},
  broken: {d: 'M0 0L5 10H-5z', alarm: true, word: 'not finite'},
  config: {d: 'M0 0L5 5L0 10L-5 5z', hollow: true, word: 'config changed'}
};
function markShape(kind, colour, place) {
  const look = kMarks[kind], tone = look.alarm ? 'var(--alarm)' : colour;
  const fill = look.stroke || look.hollow ? 'none' : tone, stroke = look.stroke || look.hollow ? tone : 'none';
  return drawing('path', {d: look.d, transform: place, style: `fill:${fill};stroke:${stroke};stroke-width:2`});
}

// Returns where to draw symbols for marks at the ascending positions `xs`: those that would cover each other are next
// to each other instead, around their mean.
function apart(xs, left, right) {
  const width = 13, most = 8, made = [];
  for (let from = 0, to = 0; from < xs.length; from = to) {
    while (to < xs.length && to - from < most && (to === from || xs[to] - xs[to - 1] < width)) ++to;
    const middle = xs.slice(from, to).reduce((sum, x) => sum + x, 0) / (to - from), length = width * (to - from - 1);
    const begin = Math.max(left, Math.min(right - length, middle - length / 2));
    for (let i = from; i < to; ++i) made.push(begin + width * (i - from));
  }
  return made;
}

// A chart of curves. options in addition to those of Plot: curves [{name, run, xs, mean, low, high, dots, faint}],
// marks [{x, text, kind (of kMarks), run}], limits [{pieces [[from, to, value]] (x and y), text, colour}], smooth() ->
// number of points of the running median, top ([top, most], if several charts share an axis).
function curvePlot(options) {
  const {curves, marks = [], limits = []} = options;
  const longest = curves.reduce((a, b) => (b.xs.length > a.length ? b.xs : a), []);
  const logarithmic = () => options.log && options.log();
  const width = (curve) => (options.smooth && !curve.dots && !curve.faint ? options.smooth() : 1);
  let made = null;
  const cutAt = (values) => {
    const [top, most] = options.top || topOf(values);
    made.idle = most > top ? `Cut off: the highest value is ${options.format(most)}.` : '';
    return top;
  };
  const range = (domain) => {
    let low = Infinity, high = -Infinity;
    const all = [];
    for (const curve of curves) {
      const [first, end] = visible(curve.xs, domain);
      for (let i = first; i < end; ++i) {
        if (curve.xs[i] < domain[0] || curve.xs[i] > domain[1]) continue;
        for (const value of [curve.mean[i], curve.low && curve.low[i], curve.high && curve.high[i]])
          if (known(value) && !(logarithmic() && value <= 0)) {
            low = Math.min(low, value);
            high = Math.max(high, value);
            all.push(value);
          }
      }
    }
    if (!(high >= low)) return [0, 1];
    if (options.zero) return [0, cutAt(all) * 1.05 || 1];
    const margin = logarithmic() ? 0 : 0.04 * (high - low);
    return [low - margin, high + margin];
  };
  // Returns the marks to draw and their x positions. If the whole axis is visible, marks beyond its ends are shown
  // there: a resume at step 0, or a crash after the last step.
  const placesOf = (frame) => {
    const {domain} = frame, all = options.view.domain === options.view.whole, [left, right] = domain.map(frame.x);
    const shown = marks.filter((mark) => all || (mark.x >= domain[0] && mark.x <= domain[1])).slice(0, 200);
    const at = (mark) => Math.max(left, Math.min(right, frame.x(mark.x)));
    shown.sort((a, b) => at(a) - at(b));
    const xs = shown.map(at), symbols = apart(xs, left, right);
    return shown.map((mark, i) => ({mark, x: xs[i], symbol: symbols[i]}));
  };
  const drawMarks = (frame) => {
    const bottom = frame.height - kMargin.bottom;
    for (const {mark, x, symbol} of placesOf(frame)) {
      const shape = markShape(mark.kind, runColour(mark.run), `translate(${symbol} 3)`);
      if (kMarks[mark.kind].line)
        frame.body.append(drawing('line', {class: 'restart', x1: x, x2: x, y1: kMargin.top, y2: bottom}));
      shape.append(drawing('title', {}, mark.text));
      frame.svg.append(shape);
    }
  };
  const drawLimits = (frame) => {
    const bottom = frame.height - kMargin.bottom;
    for (const {pieces, text, colour} of limits) {
      const seen = pieces.filter(([from, to]) => to >= frame.domain[0] && from <= frame.domain[1]);
      const style = `stroke:${colour}`;
      seen.forEach(([from, to, value], i) => {
        const y = frame.y(value), x1 = Math.max(kMargin.left, frame.x(from)),
              x2 = Math.min(frame.width - kMargin.right, frame.x(to));
        if (!(y >= kMargin.top && y <= bottom)) return;
        frame.body.append(drawing('line', {class: 'limit', x1, x2, y1: y, y2: y, style}));
        if (i + 1 === seen.length)
          frame.svg.append(
              drawing('text', {x: frame.width - kMargin.right, y: y - 4, 'text-anchor': 'end', class: 'limit'}, text));
      });
    }
  };
  const drawCurve = (curve, frame) => {
    const [first, end] = visible(curve.xs, frame.domain), colour = runColour(curve.run), points = width(curve);
    const line = (values, look, dashes) => frame.body.append(drawing('path', {
      d: pathOf(curve.xs, values, frame, first, end),
      fill: 'none',
      style: `stroke:${colour};${look}`,
      'stroke-dasharray': dashes
    }));
    if (curve.low) {
      const d = bandOf(curve.xs, curve.low, curve.high, frame, first, end);
      frame.body.append(drawing('path', {d, style: `fill:${colour};opacity:${points > 1 ? 0.1 : 0.18}`}));
    }
    const dashes = kDashes[curve.run % kDashes.length];
    if (curve.faint) {
      line(curve.mean, 'stroke-width:2.2;opacity:.8', '2 2');
    } else if (points > 1) {
      line(curve.mean, 'stroke-width:1;opacity:.28', '');
      line(smoothed(curve.mean, points), 'stroke-width:2', dashes);
    } else {
      line(curve.mean, curve.dots ? 'stroke-width:1;opacity:.6' : 'stroke-width:1.6', dashes);
    }
    if (!curve.dots || end - first >= 400) return;
    for (let i = first; i < end; ++i) {
      if (!known(curve.mean[i])) continue;
      const at = {cx: frame.x(curve.xs[i]), cy: frame.y(curve.mean[i]), r: 3.2};
      frame.body.append(drawing('circle', {...at, style: `fill:var(--panel);stroke:${colour};stroke-width:1.6`}));
    }
  };
  const draw = (frame) => {
    drawMarks(frame);
    for (const curve of curves) drawCurve(curve, frame);
    drawLimits(frame);
  };
  const read = (x) => {
    const parts = [];
    for (const curve of curves) {
      const i = nearestIndex(curve.xs, x);
      if (i < 0 || !known(curve.mean[i])) continue;
      const away = Math.abs(curve.xs[i] - x) / (options.view.domain[1] - options.view.domain[0]);
      if (away > (curve.dots ? 0.03 : 0.01) && curve.xs.length > 1) continue;
      const band = curve.low && curve.low[i] !== curve.high[i] ?
          ` (${options.format(curve.low[i])} to ${options.format(curve.high[i])})` :
          '';
      const near =
          width(curve) > 1 ? `, median around it ${options.format(smoothed(curve.mean, width(curve))[i])}` : '';
      parts.push((curve.name ? curve.name + ' ' : '') + options.format(curve.mean[i]) + band + near);
    }
    const span = options.view.domain[1] - options.view.domain[0];
    for (const mark of marks)
      if (Math.abs(mark.x - x) < span / 150) parts.push(mark.text);
    return options.view.label + ' ' + options.view.format(x) + ': ' + parts.join('  ·  ');
  };
  const rows = () => [
      ['curve', options.view.label, 'value', 'low', 'high'],
      ...curves.flatMap(
          (curve) => curve.xs.map(
              (x, i) => [curve.name, x, curve.mean[i], curve.low && curve.low[i], curve.high && curve.high[i]]))];
  const extra = csvButton(options.title, rows);
  made = new Plot({...options, extra, xs: () => longest, range, draw, read, log: false});
  if (options.log) {
    const render = made.render.bind(made);
    made.render = () => {
      made.log = options.log();
      render();
    };
  }
  return made.figure;
}
