// The sections of the page.

function wallTime() {
  return oneEach((run) => {
    const wall = run.wall;
    if (!wall) return absent('events.jsonl has no attempt, so the breakdown of wall time is unknown.');
    const unit = timeUnit(wall.end - wall.begin);
    const length = (wall.end - wall.begin) / unit.length;
    const view = makeView(unit.name, (v) => digits(v, 3), [0, length || 1]);
    const names = Object.keys(kWallParts).filter((name) => wall.sums[name]);
    const share = (name) => wall.sums[name].seconds / (wall.end - wall.begin || 1);
    const ordered = [...names].sort((a, b) => share(b) - share(a));
    const attempts = table(
        [
          number('#'), unbroken('start'), number('duration'), number('steps'), number('lost'), number('productive'),
          long('ended by')
        ],
        wall.attempts.map(
            (a, i) =>
                [a.number, moment(a.begin), duration(a.end - a.begin),
                 a.last_step > a.first_step ? `${whole(a.first_step + 1)} to ${whole(a.last_step)}` : 'none',
                 whole(a.lost), percent(a.productive_s / (a.end - a.begin || 1)),
                 element(
                     'span', {class: a.failed ? 'alarm' : ''},
                     (a.failed ? 'failure: ' : '') +
                         (a.outcome ||
                          (i + 1 < wall.attempts.length ? 'ended without a message' : 'still running, or killed')))]));
    return element(
        'div', {},
        element(
            'p', {},
            `${moment(wall.begin)} to ${moment(wall.end)}: ${duration(wall.end - wall.begin)}, ` +
                `${plural(wall.attempts_in_all, 'attempt')}, ` +
                `${plural(wall.kept, 'step')} kept, ${whole(wall.lost)} lost.`),
        wall.attempts.length > 0 ? lanesPlot({
          title: 'Wall time, a lane for each attempt',
          view,
          begin: wall.begin,
          unit: unit.length,
          intervals: wall.intervals,
          attempts: wall.attempts,
          looks: kWallParts,
          format: (v) => duration(v)
        }) :
                                   '',
        lastBeneath(6, attempts), element('p', {}, ''),
        element(
            'div', {class: 'pair'},
            element(
                'div', {class: 'across'},
                table(
                    ['category', number('time'), number('share'), 'meaning'],
                    ordered.map(
                        (name) =>
                            [element('span', {class: 'key'}, swatch([kWallParts[name][0], 'plain']), name),
                             duration(wall.sums[name].seconds), percent(share(name)), wall.sums[name].meaning]))),
            element(
                'div', {class: 'across'},
                table(
                    ['definition', number('share'), 'formula'],
                    wall.shares.map((s) => [s.title, percent(s.share), s.formula])))));
  });
}

function stragglers(run) {
  if (run.stragglers.length === 0)
    return absent(
        'No straggler was recorded: no rank was 10 % slower than the ranks with the same work in two windows of ' +
        'steps, or 5 % slower in five windows.');
  const rows = run.stragglers.map(
      ([time, step, rank, slowdown, lost, over, text]) =>
          [moment(time), whole(step), whole(rank), over ? 'no longer' : percent(slowdown),
           known(lost) ? digits(lost, 3) + ' ms' : '–', text]);
  return lastBeneath(
      5,
      table(
          [
            unbroken('time'), number('step'), number('rank'), number('slower by'), number('cost per step'),
            long('description')
          ],
          rows));
}

function ranks() {
  return oneEach((run, i) => {
    if (!run.heat || run.heat.quantities.length === 0)
      return element('div', {}, absent('ranks.h5 has no times of the ranks.'), stragglers(run));
    const map = new HeatMap(run.heat, names[i]);
    const {ranks, pp, tp, groups, grouped} = map.mesh;
    const columns = grouped.map((axis) => axis.name).reverse().join(' and ');
    const legend = `${whole(ranks)} ranks: blocks are stages (pp ${pp}), rows tp ranks (${tp}), columns ${columns} ` +
        `ranks (${groups}). Values are means over the steps of a slice of time; a rank is compared with ` +
        'the ranks that do the same work.';
    return element('div', {}, absent(legend), map.figure, element('h3', {}, 'Recorded stragglers'), stragglers(run));
  });
}

function waits() {
  return oneEach((run, i) => {
    if (run.waits.length === 0)
      return absent(
          'Neither a hang nor steps were recorded. While the run is active, `trireme timeline ' + run.dir +
          ' --record 3` records its next steps.');
    return element('div', {}, run.waits.map((one) => {
      const title =
          `${one.title}: ${one.source === 'dump' ? 'ranks that wait' : 'ranks whose compute waited'} for other ranks`;
      return element(
          'div', {}, element('h3', {}, title), one.headline ? element('p', {}, one.headline) : '',
          waitsView(one, names[i]));
    }));
  });
}

function checkpoints() {
  return oneEach((run) => {
    const {count, rows} = run.checkpoints;
    if (count === 0) return absent('No checkpoint was written.');
    const xs = rows.map((row) => row[0]);
    const view = makeView('step', (v) => whole(v), [Math.min(...xs) - (xs.length > 1 ? 0 : 1), Math.max(...xs)], 1);
    const of = (k) => rows.map((row) => row[k]);
    const topOfAll = (k) =>
        several ? topOf(runs.flatMap((other) => other.checkpoints.rows.map((row) => row[k]))) : null;
    const rate = rows.map((row) => row[2] / row[4]).filter(known);
    const plot = (title, k) => curvePlot({
      title,
      view,
      zero: true,
      top: topOfAll(k),
      height: 130,
      format: (v) => duration(v),
      curves: [{name: '', run: 0, dots: true, xs, mean: of(k)}]
    });
    return element(
        'div', {},
        element(
            'p', {},
            `${whole(count)} checkpoint${count === 1 ? '' : 's'}, the newest of step ${
                whole(rows[rows.length - 1][0])}, ` +
                `${bytesText(rows[rows.length - 1][2])}. Training waited ${duration(median(of(3)))} (median; at most ` +
                `${duration(Math.max(...of(3)))}); written in ${duration(median(of(4)))} (at most ${
                    duration(Math.max(...of(4)))}` +
                `${rate.length > 0 ? `; ${rateText(median(rate))}` : ''}).`),
        element(
            'div', {class: 'grid'}, plot('Time that training waited for a checkpoint', 3),
            plot('Time to write a checkpoint', 4)));
  });
}

function incidents() {
  return oneEach((run) => {
    const {count, rows} = run.incidents;
    if (count === 0) return absent(run.wall ? 'No incident was recorded.' : 'events.jsonl has no events.');
    const made = table(
        [unbroken('time'), number('step'), unbroken('kind'), long('description')],
        rows.map(([time, step, kind, text,
                   alarm]) => [moment(time), whole(step), element('span', {class: alarm ? 'alarm' : ''}, kind), text]));
    return element(
        'div', {}, count > rows.length ? absent(`The newest ${rows.length} of ${whole(count)} incidents:`) : '',
        lastBeneath(3, made));
  });
}

function config() {
  if (runs.every((run) => run.config.fields.length === 0))
    return absent('Neither resolved.yaml nor config.yaml can be read.');
  const box = element('div', {class: 'scroll'}), state = {word: '', only: false};
  const build = () => box.replaceChildren(
      configTable((name, differs, text) => (!state.only || differs) && text.toLowerCase().includes(state.word)));
  build();
  const changes = oneEach(
      (run) => run.config.changes.length === 0 ?
          absent('No restart changed a field.') :
          element(
              'div', {class: 'across'},
              table(
                  ['start', unbroken('time'), unbroken('field'), long('before'), long('after')],
                  run.config.changes.map(([time, start, name, before,
                                           after]) => [start, moment(time), name, before || '–', after || '–']))));
  return element(
      'div', {}, element('p', {}, 'Changes between attempts'), changes,
      element(
          'div', {class: 'bar screen-only'}, element('label', {}, 'Find ', element('input', {
                                                       type: 'search',
                                                       oninput: (event) => {
                                                         state.word = event.target.value.toLowerCase();
                                                         build();
                                                       }
                                                     })),
          several ? element(
                        'label', {}, element('input', {
                          type: 'checkbox',
                          onchange: (event) => {
                            state.only = event.target.checked;
                            build();
                          }
                        }),
                        'only fields that differ') :
                    ''),
      box);
}

function build() {
  const sections = [
    ['curves', 'Curves', curves], ['step', 'Time of a step', stepTime], ['ranks', 'All ranks', ranks],
    ['waits', 'Waits between ranks', waits],
    ...(runs.some((run) => run.experts) ? [['experts', 'Experts', experts]] : []), ['wall', 'Wall time', wallTime],
    ['checkpoints', 'Checkpoints', checkpoints], ['incidents', 'Incidents', incidents],
    ['samples', 'Generated text', samples], ['config', 'Config', config]
  ];
  put(document.getElementById('page'), [
    element(
        'header', {}, element('h1', {}, 'Trireme: ' + names.join(' and ')),
        element('p', {class: 'faint'}, `Report written ${moment(report.made)} by trireme ${report.version}`)),
    firstScreen(), comparison(),
    element('nav', {'aria-label': 'Sections'}, sections.map(([id, title]) => element('a', {href: '#' + id}, title))),
    overview(), ...sections.map(([id, title, make]) => section(id, title, make()))
  ]);
  drawAll();
}
build();
// Tests look for this attribute. Its value is the time in ms since the page was requested.
document.documentElement.dataset.drawn = String(Math.round(performance.now()));
