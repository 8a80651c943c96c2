// The grid of a run's ranks: the RankGrid of io/base/rank_grid.h. Pictures have room for three directions: stages (pp),
// the tp ranks of a group, and the groups of a stage, one for each position on all other axes.

class RankGrid {
  constructor(axes) {  // [[name, size], ...], fastest first
    this.axes = [];
    let stride = 1;
    for (const [name, size] of axes) {
      this.axes.push({name, size, stride});
      stride *= size;
    }
    this.ranks = stride;
    this.grouped = this.axes.filter(({name}) => name !== 'pp' && name !== 'tp');
    this.pp = this.axis('pp').size;
    this.tp = this.axis('tp').size;
    this.groups = this.ranks / (this.pp * this.tp);
  }
  // An axis that the grid does not list has one rank.
  axis(name) { return this.axes.find((axis) => axis.name === name) || {name, size: 1, stride: 1}; }
  on(axis, rank) { return Math.floor(rank / axis.stride) % axis.size; }
  // Returns the position on some axes, slowest first: "pp1 dp0 tp3".
  placeOn(axes, rank) { return [...axes].reverse().map((axis) => axis.name + this.on(axis, rank)).join(' '); }
  nameOf(rank) { return `rank ${rank} [${this.placeOn(this.axes, rank)}]`; }
  // Returns the names of the axes along which two ranks differ.
  between(a, b) { return this.axes.filter((axis) => this.on(axis, a) !== this.on(axis, b)).map(({name}) => name); }

  spotOf(rank) {
    let group = 0, stride = 1;
    for (const axis of this.grouped) {
      group += stride * this.on(axis, rank);
      stride *= axis.size;
    }
    return {pp: this.on(this.axis('pp'), rank), group, tp: this.on(this.axis('tp'), rank)};
  }
  rankAt({pp, group, tp}) {
    let rank = pp * this.axis('pp').stride + tp * this.axis('tp').stride;
    for (const axis of this.grouped) {
      rank += group % axis.size * axis.stride;
      group = Math.floor(group / axis.size);
    }
    return rank;
  }
  nameOfGroup(group) {  // "dp3"; on several axes: "x1 dp3"
    return this.placeOn(this.grouped, this.rankAt({pp: 0, group, tp: 0}));
  }
}
