// The waits between ranks: the ranks that delay others, the longest waits, and a picture. For few ranks the picture is
// the mesh in space, which the pointer or keys rotate: groups (grid.js) to the right, pp downwards, tp into the depth,
// with an arrow from each waiting rank to the rank that it waits for. For many ranks it is a matrix (matrix.js).

const kAxisLooks = {
  tp: ['--tone-orange', []],
  pp: ['--tone-sky', [7, 3]],
  dp: ['--tone-red', [2, 3]],
  other: ['--tone-green', [12, 3]],        // all other axes
  several: ['--tone-grey', [9, 3, 2, 3]],  // a wait along more than one axis
};
const kFirstView = {
  yaw: 0.6,
  pitch: 0.45
};
const kListedWaits = 12;
const kRanksInSpace = 64;  // more ranks than this are shown as a matrix
const lookOf = (axis) => kAxisLooks[axis] || kAxisLooks.other;
const toneOfAxis = (axis) => getComputedStyle(document.documentElement).getPropertyValue(lookOf(axis)[0]).trim();

// Creates the view of a run's waits: the sums per awaited rank, the picture, and the list of the longest waits.
function waitsView(waits, name) {
  const mesh = new RankGrid(waits.axes);
  const view = mesh.ranks > kRanksInSpace ? new WaitMatrix(waits, mesh, name) : new MeshView(waits, mesh, name);
  return element('div', {}, awaitedRanks(waits, mesh), view.figure, waitList(waits, mesh));
}
function axisOfWait(mesh, [waiter, awaited]) {
  const along = mesh.between(waiter, awaited);
  return along.length === 1 ? along[0] : 'several';
}
// Returns the axes of all waits, in the order of kAxisLooks.
function axesOfWaits(waits, mesh) {
  const known = Object.keys(kAxisLooks), at = (axis) => known.indexOf(axis in kAxisLooks ? axis : 'other');
  return [...new Set(waits.edges.map((edge) => axisOfWait(mesh, edge)))].sort((a, b) => at(a) - at(b));
}
function awaitedRanks(waits, mesh) {
  const sums = new Map(), dump = waits.source === 'dump';
  for (const edge of waits.edges) {
    const of = sums.get(edge[1]) || {ms: 0, waiting: new Set(), axes: new Set()};
    of.ms += edge[3];
    of.waiting.add(edge[0]);
    of.axes.add(axisOfWait(mesh, edge));
    sums.set(edge[1], of);
  }
  const sorted = [...sums].sort((a, b) => (dump ? b[1].waiting.size - a[1].waiting.size : b[1].ms - a[1].ms));
  if (sorted.length === 0) return '';
  const [worst, most] = sorted[0];
  const sentence = dump ? `Ranks that wait directly for ${mesh.nameOf(worst)}: ${whole(most.waiting.size)}.` :
                          `Ranks waited for ${mesh.nameOf(worst)}: ${duration(most.ms / 1000)} per step in total.`;
  const rows = sorted.slice(0, 8).map(([rank, of]) => {
    const row = [mesh.nameOf(rank), whole(of.waiting.size), [...of.axes].join(', ')];
    return dump ? row : [...row, duration(of.ms / 1000)];
  });
  const heads = ['awaited rank', number('waiting ranks'), 'axis'];
  return element(
      'div', {}, element('p', {}, element('strong', {}, sentence)),
      element('div', {class: 'across'}, table(dump ? heads : [...heads, number('sum of waits per step')], rows)),
      sorted.length > rows.length ? absent(`and ${plural(sorted.length - rows.length, 'more rank')}`) : '');
}
function waitList(waits, mesh) {
  const dump = waits.source === 'dump';
  const rows = waits.edges.slice(0, kListedWaits).map((edge) => {
    const row = [mesh.nameOf(edge[0]), mesh.nameOf(edge[1]), waits.what[edge[2]]];
    return dump ? row : [...row, duration(edge[3] / 1000)];
  });
  if (rows.length === 0) return element('p', {}, 'No rank waited for another rank.');
  const heads = ['waiting rank', 'waits for', dump ? 'operation' : 'axis'], more = waits.num_waits - rows.length;
  return element(
      'div', {}, element('div', {class: 'across'}, table(dump ? heads : [...heads, number('per step')], rows)),
      more > 0 ? absent(`and ${plural(more, 'more wait')}`) : '');
}

// Returns the drawn length of an axis, which grows with the logarithm of its ranks beyond a dozen.
function axisLength(count) {
  const gaps = count - 1;
  return gaps <= 12 ? gaps : 12 + 4 * Math.log2(gaps / 12);
}

class MeshView {
  constructor(waits, mesh, name) {
    this.waits = waits;
    this.mesh = mesh;
    this.dump = waits.source === 'dump';
    this.size = mesh.ranks;
    this.shown = this.dump ? waits.edges.length : Math.min(waits.edges.length, kListedWaits);
    this.rank = null;
    this.allAxes = axesOfWaits(waits, mesh);
    this.axes = new Set(this.allAxes);
    this.suspects = new Set(waits.culprits);
    Object.assign(this, kFirstView);
    this.count();
    this.canvas = element('canvas', {
      tabindex: 0,
      role: 'img',
      'aria-label': `${name}: the mesh of ranks, with an arrow from each waiting rank to the one it waits for. ` +
          'Arrow keys turn it, n and p select the next and previous rank; the longest waits are in the table below'
    });
    this.readout = element('div', {class: 'readout', 'aria-live': 'polite'});
    this.scale = element('div', {class: 'legend'});
    this.figure = element('figure', {}, this.controls(), this.canvas, this.readout, this.scale, this.legend());
    this.listen();
    draws(this);
    new ResizeObserver(() => {
      if (this.canvas.clientWidth !== this.width) requestAnimationFrame(() => this.render());
    }).observe(this.figure);
  }

  // Collects for each rank how long others waited for it, its edges, and whether it waits itself.
  count() {
    this.awaited = new Float64Array(this.size);
    this.edgesOf = Array.from({length: this.size}, () => []);
    this.isWaiting = new Uint8Array(this.size);
    for (const edge of this.waits.edges) {
      const [waiter, awaited, , ms] = edge;
      this.awaited[awaited] += ms;
      this.isWaiting[waiter] = 1;
      this.edgesOf[waiter].push(edge);
      this.edgesOf[awaited].push(edge);
    }
    this.mostAwaited = this.awaited.reduce((a, v) => Math.max(a, v), 0);
    this.longest = this.waits.edges.reduce((a, edge) => Math.max(a, edge[3]), 0);
  }
  axisOf(edge) { return axisOfWait(this.mesh, edge); }
  what(edge) { return this.waits.what[edge[2]]; }

  controls() {
    const {edges} = this.waits;
    const boxes = this.allAxes.map(
        (axis) => element(
            'label', {}, element('input', {
              type: 'checkbox',
              checked: true,
              onchange: (event) => {
                this.axes[event.target.checked ? 'add' : 'delete'](axis);
                this.paint();
              }
            }),
            axis));
    const shownCount = element('span', {}), showCount = () => {
      shownCount.textContent = `the longest ${whole(this.shown)} of ${whole(edges.length)}`;
    };
    const slider = element('input', {
      type: 'range',
      min: 1,
      max: Math.max(1, edges.length),
      value: this.shown,
      'aria-label': 'Number of waits that are drawn',
      oninput: () => {
        this.shown = Number(slider.value);
        showCount();
        this.paint();
      }
    });
    showCount();
    const back = element(
        'button', {
          type: 'button',
          onclick: () => {
            Object.assign(this, kFirstView);
            this.render();
          }
        },
        'Reset view');
    return element(
        'div', {class: 'bar screen-only'},
        element('span', {class: 'faint'}, 'Drag the mesh or press arrow keys to turn it.'), back, boxes,
        this.dump ? '' : [slider, shownCount]);
  }
  legend() {
    return element(
        'div', {class: 'legend'},
        this.allAxes.map(
            (axis) => element(
                'span', {}, drawing('svg', {viewBox: '0 0 26 12', 'aria-hidden': 'true'}, drawing('path', {
                                      d: 'M0 6H19M19 2L26 6L19 10Z',
                                      style: `fill:var(${lookOf(axis)[0]});stroke:var(${lookOf(axis)[0]})`,
                                      'stroke-width': 2.2,
                                      'stroke-dasharray': lookOf(axis)[1].join(' ')
                                    })),
                axis === 'several' ? 'across several axes' : `waits along ${axis}`)));
  }
  explain() {
    if (this.dump) {
      const mark = (kind) => {
        const [fill, ring] = this.look(kind);
        return drawing(
            'svg', {viewBox: '0 0 26 12', 'aria-hidden': 'true'},
            drawing('circle', {cx: 13, cy: 6, r: 4.5, fill, stroke: ring, 'stroke-width': 1.5}));
      };
      this.scale.replaceChildren(
          this.suspects.size > 0 ? element('span', {}, mark('suspect'), 'the others wait for it (two rings)') : '',
          element('span', {}, mark('waits'), 'waits'), element('span', {}, mark('rest'), 'does not wait'));
      return;
    }
    const cells = [];
    for (let i = 0; i <= 10; ++i)
      cells.push(drawing('rect', {x: 10 * i, width: 11, height: 12, fill: `rgb(${amountColour(25.5 * i).join()})`}));
    this.scale.replaceChildren(element(
        'span', {}, 'others waited for it: 0',
        drawing('svg', {viewBox: '0 0 110 12', style: 'width:110px', 'aria-hidden': 'true'}, cells),
        duration(this.mostAwaited / 1000) + ' a step'));
  }
  listen() {
    let from = null;
    this.canvas.addEventListener('pointerdown', (event) => {
      from = [event.clientX, event.clientY];
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener('pointerup', () => {
      from = null;
    });
    this.canvas.addEventListener('pointermove', (event) => {
      if (from === null) return this.point(event);
      this.turn((event.clientX - from[0]) * 0.008, (event.clientY - from[1]) * 0.008);
      from = [event.clientX, event.clientY];
    });
    this.canvas.addEventListener('pointerleave', () => this.choose(null));
    this.canvas.addEventListener('keydown', (event) => {
      const turns = {ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1]}[event.key];
      const next = {n: 1, p: -1}[event.key];
      if (turns)
        this.turn(...turns);
      else if (next)
        this.choose(this.rank === null ? 0 : (this.rank + next + this.size) % this.size);
      else if (event.key === 'Escape')
        this.choose(null);
      else
        return;
      event.preventDefault();
    });
  }
  turn(yaw, pitch) {
    this.yaw += yaw;
    this.pitch = Math.max(-1.4, Math.min(1.4, this.pitch + pitch));
    this.render();
  }
  point(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let nearest = null, least = Math.max(12, 1.5 * this.radius) ** 2;
    for (let rank = 0; rank < this.size; ++rank) {
      const away = (this.at[2 * rank] - x) ** 2 + (this.at[2 * rank + 1] - y) ** 2;
      if (away < least) [nearest, least] = [rank, away];
    }
    if (nearest !== this.rank) this.choose(nearest);
  }
  choose(rank) {
    this.rank = rank;
    this.readout.textContent = rank === null ? '' : this.words(rank);
    this.paint();
  }
  words(rank) {
    const mine = this.edgesOf[rank].filter((edge) => edge[0] === rank),
          others = this.edgesOf[rank].length - mine.length;
    const shown = mine.slice(0, 4).map(
        (edge) => `rank ${edge[1]} (${this.what(edge)}${this.dump ? '' : ', ' + duration(edge[3] / 1000)})`);
    return this.mesh.nameOf(rank) + ': ' + (shown.length > 0 ? 'waits for ' + shown.join(', ') : 'does not wait') +
        (mine.length > shown.length ? ` and ${mine.length - shown.length} more` : '') +
        `; ${whole(others)} rank${others === 1 ? ' waits' : 's wait'} for it` +
        (this.dump || others === 0 ? '' : `, ${duration(this.awaited[rank] / 1000)} per step`);
  }

  // Returns the position of a place before it is scaled to the canvas. Nearer positions have a smaller depth.
  project(group, pp, tp) {
    const along = (at, count) => (count > 1 ? (at / (count - 1) - 0.5) * axisLength(count) : 0);
    const {mesh} = this;
    const x = along(group, mesh.groups), y = along(pp, mesh.pp), z = along(tp, mesh.tp);
    const right = x * Math.cos(this.yaw) + z * Math.sin(this.yaw),
          back = z * Math.cos(this.yaw) - x * Math.sin(this.yaw);
    return [
      right, y * Math.cos(this.pitch) - back * Math.sin(this.pitch),
      back * Math.cos(this.pitch) + y * Math.sin(this.pitch)
    ];
  }
  render() {
    const {pp, groups, tp} = this.mesh, margin = 44;
    this.width = this.canvas.clientWidth || this.width || 640;
    const most = onPaper() ? 260 : Math.round(Math.max(260, Math.min(460, 0.6 * this.width)));
    let right = 0, down = 0;
    for (const corner of [[0, 0, 0], [groups - 1, 0, 0], [0, pp - 1, 0], [0, 0, tp - 1]]) {
      const [x, y] = this.project(...corner);  // the other corners are symmetric
      right = Math.max(right, Math.abs(x));
      down = Math.max(down, Math.abs(y));
    }
    const fit = (length, extent) => (extent > 0 ? (length - 2 * margin) / (2 * extent) : Infinity);
    const unit = Math.min(150, fit(this.width, right), fit(most, down));
    // Makes the picture of a flat mesh low.
    this.height = Math.min(most, Math.max(140, Math.round(2 * (down * unit + margin))));
    // The radius of a rank depends on the shortest distance between neighbours.
    const gap = Math.min(...[pp, groups, tp].map((n) => (n > 1 ? axisLength(n) / (n - 1) : 1)));
    this.radius = Math.max(1.2, Math.min(14, 0.2 * unit, 0.45 * gap * unit));
    this.onCanvas = (...place) => {
      const [x, y] = this.project(...place);
      return [this.width / 2 + unit * x, this.height / 2 + unit * y];
    };
    this.at = new Float64Array(2 * this.size);
    const depth = new Float64Array(this.size);
    for (let rank = 0; rank < this.size; ++rank) {
      const spot = this.mesh.spotOf(rank), [x, y, z] = this.project(spot.group, spot.pp, spot.tp);
      this.at[2 * rank] = this.width / 2 + unit * x;
      this.at[2 * rank + 1] = this.height / 2 + unit * y;
      depth[rank] = z;
    }
    this.farthestFirst = [...depth.keys()].sort((a, b) => depth[b] - depth[a]);
    this.explain();
    this.paint();
  }

  paint() {
    if (!this.at) return;
    const dense = window.devicePixelRatio || 1, {canvas} = this, style = getComputedStyle(document.documentElement);
    canvas.width = Math.round(this.width * dense);
    canvas.height = Math.round(this.height * dense);
    canvas.style.height = this.height + 'px';
    const pen = canvas.getContext('2d');
    pen.scale(dense, dense);
    pen.font = '11px system-ui, sans-serif';
    this.tones = Object.fromEntries(this.allAxes.map((axis) => [axis, toneOfAxis(axis)]));
    this.paintFrame(pen, style);
    const drawn = this.waits.edges.slice(0, this.shown).filter((edge) => this.axes.has(this.axisOf(edge)));
    const chosen = this.rank === null ? [] : this.edgesOf[this.rank].filter((edge) => this.axes.has(this.axisOf(edge)));
    const opacity = this.rank !== null ? 0.12 : drawn.length <= 200 ? 0.9 : drawn.length <= 3000 ? 0.4 : 0.15;
    const edges = () => drawn.forEach((edge) => this.paintEdge(pen, edge, opacity));
    edges();
    for (const rank of this.farthestFirst) this.paintRank(pen, style, rank);
    for (const rank of this.suspects) this.paintRank(pen, style, rank);
    for (const edge of chosen) this.paintEdge(pen, edge, 1);
  }
  // Draws the lines between neighbours and the names at the edges.
  paintFrame(pen, style) {
    const {pp, groups, tp} = this.mesh, last = [groups - 1, pp - 1, tp - 1];
    const line = (from, to) => {
      pen.moveTo(...this.onCanvas(...from));
      pen.lineTo(...this.onCanvas(...to));
    };
    pen.strokeStyle = style.getPropertyValue('--line');
    pen.lineWidth = 1;
    pen.beginPath();
    for (const axis of [0, 1, 2]) {
      const [u, v] = [0, 1, 2].filter((other) => other !== axis);
      for (let i = 0; i <= last[u]; ++i)
        for (let k = 0; k <= last[v]; ++k) {
          const from = [0, 0, 0];
          from[u] = i;
          from[v] = k;
          const to = [...from];
          to[axis] = last[axis];
          line(from, to);
        }
    }
    pen.stroke();
    pen.fillStyle = style.getPropertyValue('--faint');
    pen.textAlign = 'center';
    pen.textBaseline = 'middle';
    const names = [(i) => this.mesh.nameOfGroup(i), (i) => 'pp' + i, (i) => 'tp' + i];
    names.forEach((nameOf, axis) => {
      if (last[axis] > 0 || this.mesh.ranks === 1) this.paintNames(pen, nameOf, axis, last);
    });
  }
  // Draws names along the outermost edge of the mesh, where they do not overlap ranks.
  paintNames(pen, nameOf, axis, last) {
    const others = [0, 1, 2].filter((other) => other !== axis), middle = [this.width / 2, this.height / 2];
    let best = null;
    for (const u of [0, last[others[0]]])
      for (const v of [0, last[others[1]]]) {
        const place = last.map((n) => n / 2);
        place[others[0]] = u;
        place[others[1]] = v;
        const [x, y] = this.onCanvas(...place);
        // Selects the left edge for the vertical axis and the lower edge for the others.
        const score = axis === 1 ? -x : y;
        if (best === null || score > best.score) best = {score, u, v, x, y};
      }
    const out = [best.x - middle[0], best.y - middle[1]], length = Math.hypot(...out) || 1;
    const ends = [0, last[axis]].map((i) => {
      const place = [0, 0, 0];
      place[axis] = i;
      return this.onCanvas(...place);
    });
    const apart = Math.hypot(ends[1][0] - ends[0][0], ends[1][1] - ends[0][1]) / (last[axis] || 1);
    const every = apart >= 24 ? 1 : last[axis] || 1;  // otherwise only the first and the last
    for (let i = 0; i <= last[axis]; i += every) {
      const place = [0, 0, 0];
      place[axis] = i;
      place[others[0]] = best.u;
      place[others[1]] = best.v;
      const [x, y] = this.onCanvas(...place), away = this.radius + 15;
      pen.fillText(
          nameOf(i), x + (length > 1 ? out[0] / length * away : -away), y + (length > 1 ? out[1] / length * away : 0));
    }
  }
  paintEdge(pen, edge, opacity) {
    const [a, b, , ms] = edge, {at} = this;
    const [fromX, fromY, toX, toY] = [at[2 * a], at[2 * a + 1], at[2 * b], at[2 * b + 1]];
    const dx = toX - fromX, dy = toY - fromY, length = Math.hypot(dx, dy);
    if (length < 1) return;
    // Bends the arrow to its left, so that the arrows of two ranks that wait for each other are separate.
    const bend = [fromX + dx / 2 + dy * 0.13, fromY + dy / 2 - dx * 0.13];
    const clip = (x, y) => {  // ends the arrow at the rim of a rank
      const away = Math.hypot(bend[0] - x, bend[1] - y) || 1, share = Math.min(0.8, (this.radius + 2) / away);
      return [x + (bend[0] - x) * share, y + (bend[1] - y) * share];
    };
    const begin = clip(fromX, fromY), end = clip(toX, toY), axis = this.axisOf(edge), dashes = lookOf(axis)[1];
    const width = this.longest > 0 ? 1.2 + 2.6 * Math.sqrt(ms / this.longest) : 1.8;
    pen.globalAlpha = opacity;
    pen.strokeStyle = pen.fillStyle = this.tones[axis];
    pen.lineWidth = width;
    pen.setLineDash(dashes);
    pen.beginPath();
    pen.moveTo(...begin);
    pen.quadraticCurveTo(...bend, ...end);
    pen.stroke();
    pen.setLineDash([]);
    const turn = Math.atan2(end[1] - bend[1], end[0] - bend[0]), tip = Math.min(length / 3, 4 + 2.2 * width);
    pen.beginPath();
    pen.moveTo(...end);
    for (const side of [-0.42, 0.42])
      pen.lineTo(end[0] - tip * Math.cos(turn + side), end[1] - tip * Math.sin(turn + side));
    pen.fill();
    pen.globalAlpha = 1;
  }
  look(kind) {
    return {suspect: ['#b3400a', '#111111'], waits: ['#b9def5', '#5b6470'], rest: ['#f4f4f1', '#5b6470']}[kind];
  }
  paintRank(pen, style, rank) {
    const x = this.at[2 * rank], y = this.at[2 * rank + 1], {radius} = this, isSuspect = this.suspects.has(rank);
    let [fill, ring] = this.look(isSuspect ? 'suspect' : this.isWaiting[rank] ? 'waits' : 'rest');
    const byte = this.mostAwaited > 0 ? 255 * this.awaited[rank] / this.mostAwaited : 0;
    if (!this.dump) [fill, ring] = [`rgb(${amountColour(byte).join()})`, '#5b6470'];
    pen.fillStyle = fill;
    pen.strokeStyle = ring;
    pen.lineWidth = radius >= 5 ? 1.2 : 0.5;
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    pen.fill();
    if (radius >= 3) pen.stroke();
    if (isSuspect || rank === this.rank) {
      pen.strokeStyle = isSuspect ? '#b3400a' : style.getPropertyValue('--ink');
      pen.lineWidth = 2;
      pen.beginPath();
      pen.arc(x, y, Math.max(radius + 4, 7), 0, 2 * Math.PI);
      pen.stroke();
    }
    if (radius < 9) return;
    pen.fillStyle = isSuspect || (!this.dump && byte < 128) ? '#ffffff' : '#111111';
    pen.textAlign = 'center';
    pen.textBaseline = 'middle';
    pen.fillText(String(rank), x, y + 0.5);
  }
}
