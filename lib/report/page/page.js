// The page: its sections, from the data that the program has put into it.

const report = JSON.parse(document.getElementById('data').textContent);
const runs = report.runs, several = runs.length > 1;
const names = runs.map((run, i) => {
  const same = runs.some((other, k) => k !== i && other.name === run.name);
  return same ? `${run.name} (${run.dir.split('/').slice(-2).join('/')})` : run.name;
});
const nameTag = (i) => element(
    'span', {},
    drawing('svg', {viewBox: '0 0 26 12', style: 'width:26px;height:12px', 'aria-hidden': 'true'}, drawing('line', {
              x1: 0,
              x2: 26,
              y1: 6,
              y2: 6,
              'stroke-width': 2.4,
              'stroke-dasharray': kDashes[i],
              style: `stroke:${runColour(i)}`
            })),
    ' ' + names[i]);
const oneEach = (make) => element(
    'div', {class: 'runs'},
    runs.map((run, i) => element('div', {}, several ? element('h3', {}, nameTag(i)) : '', make(run, i))));
const absent = (text) => element('p', {class: 'faint'}, text);

function overview() {
  const labels = [...new Set(runs.flatMap((run) => run.facts.map((fact) => fact[0])))];
  const rows = labels
                   .map((label) => [element('strong', {}, label), ...runs.map((run) => {
                          const fact = run.facts.find((f) => f[0] === label);
                          return (fact && fact[1]) || '–';
                        })])
                   .filter((row) => row.slice(1).some((cell) => cell !== '–'));
  const remarks = runs.flatMap((run, i) => run.remarks.map((text) => (several ? names[i] + ': ' : '') + text));
  return element(
      'div', {}, table([unbroken(''), ...runs.map((_, i) => long(several ? nameTag(i) : 'Run ' + names[0]))], rows),
      remarks.map((text) => absent('Note: ' + text)));
}

// The x axes that curves can have. Time starts at a run's first event, in the unit that fits the longest run.
const kTime = timeUnit(Math.max(...runs.map((run) => (run.x.time[run.x.time.length - 1] || 0) - began(run))));
const kAxes = {
  step: {label: 'step', of: (run, x) => x.step, format: (v) => whole(v), mark: (run, mark) => mark[0]},
  tokens: {
    label: 'tokens',
    of: (run, x) => x.tokens,
    format: (v) => counted(v),
    mark: (run, mark) => tokensAt(run, mark[0])
  },
  time: {
    label: kTime.name,
    of: (run, x) => x.time.map((t) => (t - began(run)) / kTime.length),
    format: (v) => digits(v, 3),
    mark: (run, mark) => (mark[1] - began(run)) / kTime.length
  },
};
function began(run) { return run.wall ? run.wall.begin : run.x.time[0] || 0; }
function tokensAt(run, step) {
  const i = nearestIndex(run.x.step, step);
  return i < 0 || !run.x.step[i] ? 0 : run.x.tokens[i] * step / run.x.step[i];
}

function curves() {
  const box = element('div', {}), state = {axis: 'step', log: false};
  const reset = element('button', {hidden: true, type: 'button'}, 'Show all (Esc)');
  const build = () => {
    const axis = kAxes[state.axis];
    const all = runs.flatMap((run) => [...axis.of(run, run.x), ...run.lost.flatMap((piece) => axis.of(run, piece))]);
    if (all.length === 0) return box.replaceChildren(absent('No step is recorded yet.'));
    const extent = all.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
    if (extent[0] === extent[1]) extent[1] = extent[0] + 1;
    const view = makeView(axis.label, axis.format, extent);
    view.settled = () => {
      reset.hidden = view.domain === view.whole;
    };
    reset.onclick = () => setDomain(view, null);
    reset.hidden = true;
    const marks = runs.flatMap(
        (run, i) =>
            [...run.restarts.map((r, k) => ({
                                   x: axis.mark(run, r),
                                   run: i,
                                   kind: 'restart',
                                   text: `${several ? names[i] + ': ' : ''}restart ${k + 1} at step ${whole(r[0])}, ${
                                       whole(r[2])} steps lost`
                                 })),
             ...run.not_finite.map(
                 (n) => ({
                   x: axis.mark(run, n),
                   run: i,
                   kind: 'alarm',
                   text: `${several ? names[i] + ': ' : ''}step ${whole(n[0])} was not finite: ${n[2]}`
                 }))]);
    const curveOf = (name) => runs.flatMap((run, i) => run.curves[name] === undefined ? [] : [
      {...run.curves[name], name: several ? names[i] : '', run: i, xs: axis.of(run, run.x)}
    ]);
    const plot = (title, name, more) => {
      const found = curveOf(name);
      return found.length === 0 ? '' :
                                  curvePlot({title, view, curves: found, marks, format: (v) => digits(v, 4), ...more});
    };
    const loss = curveOf('loss');
    for (const [i, run] of runs.entries()) {
      for (const piece of run.lost)
        loss.push({
          name: (several ? names[i] + ' ' : '') + 'lost',
          run: i,
          xs: axis.of(run, piece),
          mean: piece.loss,
          faint: true
        });
      if (run.evaluations.length > 0)
        loss.push({
          name: (several ? names[i] + ' ' : '') + 'validation',
          run: i,
          dots: 'alone',
          xs: run.evaluations.map((e) => axis.mark(run, e)),
          mean: run.evaluations.map((e) => e[2])
        });
    }
    box.replaceChildren(element(
        'div', {class: 'grid'}, curvePlot({
          title: 'Loss',
          view,
          curves: loss,
          marks,
          wide: true,
          height: 300,
          log: () => state.log,
          format: (v) => digits(v, 5)
        }),
        plot('Tokens a second', 'tokens_per_s', {format: counted, zero: true}),
        plot('MFU', 'mfu', {format: percent, scale: (v) => digits(100 * v, 3) + ' %', zero: true}),
        plot('Milliseconds a step', 'step_ms', {zero: true}),
        plot('Learning rate', 'lr', {zero: true, format: (v) => digits(v, 3)}),
        plot('Gradient norm', 'grad_norm', {log: () => state.log})));
    if (box.isConnected) drawAll();
  };
  const choices = Object.keys(kAxes).map(
      (name) => element(
          'label', {}, element('input', {
            type: 'radio',
            name: 'axis',
            checked: name === state.axis,
            onchange: () => {
              state.axis = name;
              build();
            }
          }),
          name));
  const log = element(
      'label', {}, element('input', {
        type: 'checkbox',
        onchange: (event) => {
          state.log = event.target.checked;
          build();
        }
      }),
      'logarithmic loss and norm');
  build();
  const most = Math.max(...runs.map((run) => run.steps_a_point));
  const dots = runs.some((run) => run.evaluations.length > 0), lost = runs.some((run) => run.lost.length > 0);
  const restarts = runs.some((run) => run.restarts.length > 0), broken = runs.some((run) => run.not_finite.length > 0);
  const signs = [
    most > 1 ? `lines: means of up to ${Math.ceil(most)} steps, with a band from the least to the largest` : '',
    dots ? '○ validation' : '', lost ? 'dotted: steps that were lost and repeated' : '', restarts ? '▼ restart' : '',
    broken ? '✕ not finite' : ''
  ].filter(Boolean).join('  ·  ');
  return element(
      'div', {}, several ? element('div', {class: 'legend'}, runs.map((_, i) => nameTag(i))) : '',
      element(
          'div', {class: 'bar screen-only'}, element('span', {}, 'x axis:'), choices, log, reset,
          element(
              'span', {class: 'faint screen-only'},
              'Drag to zoom in. In the focused chart, the arrow keys, Home and End move the cursor; + and - zoom.')),
      signs ? absent(signs) : '', box);
}

function stepTime() {
  const state = {share: false};
  const made = runs.map((run) => {
    const parts = Object.keys(run.parts);
    if (parts.length === 0) return null;
    const xs = run.x.step, view = makeView('step', (v) => whole(v), [xs[0], Math.max(xs[xs.length - 1], xs[0] + 1)]);
    const plot = stackPlot({
      title: 'Milliseconds a step on world rank 0',
      view,
      xs,
      parts: run.parts,
      looks: kStepParts,
      height: 260,
      share: () => state.share,
      format: (v) => digits(v, 3) + ' ms'
    });
    const mean =
        Object.fromEntries(parts.map((name) => [name, run.parts[name].reduce((a, v) => a + (v || 0), 0) / xs.length]));
    const all = parts.reduce((sum, name) => sum + mean[name], 0) || 1;
    const shares = Object.fromEntries(parts.map((name) => [name, mean[name] / all]));
    const rows = Object.keys(kStepParts)
                     .filter((name) => mean[name] > 0)
                     .map((name) => [name, digits(mean[name], 3) + ' ms', percent(shares[name])]);
    return {
      view,
      node: element(
          'div', {}, plot, shareBar(shares, kStepParts, (name) => `${name} ${percent(shares[name])}`),
          table(['part', number('mean'), number('share')], rows))
    };
  });
  const toggle = element(
      'label', {}, element('input', {
        type: 'checkbox',
        onchange: (event) => {
          state.share = event.target.checked;
          for (const one of made)
            if (one) refresh(one.view);
        }
      }),
      'as shares of the step');
  return element(
      'div', {},
      absent(
          'tp, pp, dp: exposed transfers, for which compute waited; bubble: waits for other stages; ' +
          'data: waits for the batch; other: host time without work on the device.'),
      element('div', {class: 'bar screen-only'}, toggle),
      oneEach((run, i) => (made[i] ? made[i].node : absent('No step is recorded yet.'))));
}

function wallTime() {
  return oneEach((run) => {
    const wall = run.wall;
    if (!wall) return absent('events.jsonl has no attempt, so the breakdown of wall time is unknown.');
    const unit = timeUnit(wall.end - wall.begin);
    const slots = Object.values(wall.slots)[0] || [], length = (wall.end - wall.begin) / unit.length;
    const xs = slots.map((_, i) => i / slots.length * length);
    const view = makeView(unit.name, (v) => digits(v, 3), [0, length || 1]);
    const names = Object.keys(kWallParts).filter((name) => wall.sums[name]);
    const share = (name) => wall.sums[name].seconds / (wall.end - wall.begin || 1);
    const ordered = [...names].sort((a, b) => share(b) - share(a));
    const attempts = table(
        [
          number('#'), unbroken('began'), number('duration'), number('steps'), number('lost'), number('productive'),
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
                `${whole(wall.attempts_in_all)} attempt${wall.attempts_in_all === 1 ? '' : 's'}, ` +
                `${whole(wall.kept)} steps kept, ${whole(wall.lost)} lost.`),
        slots.length > 0 ? stackPlot({
          title: 'Wall time by category',
          view,
          xs,
          parts: wall.slots,
          looks: kWallParts,
          height: 130,
          steps: true,
          format: (v) => duration(v)
        }) :
                           '',
        table(
            ['category', number('time'), number('share'), 'meaning'],
            ordered.map(
                (name) => [name, duration(wall.sums[name].seconds), percent(share(name)), wall.sums[name].meaning])),
        element('p', {}, ''),
        table(
            ['definition', number('share'), 'formula'], wall.shares.map((s) => [s.title, percent(s.share), s.formula])),
        element('p', {}, ''), lastBeneath(6, attempts));
  });
}

function stragglers(run) {
  if (run.stragglers.length === 0)
    return absent(
        'None recorded: no rank was 10 % slower than the ranks with the same work in two windows of steps, or 5 % ' +
        'slower in five windows.');
  const rows = run.stragglers.map(
      ([time, step, rank, slowdown, lost, over, text]) =>
          [moment(time), whole(step), whole(rank), over ? 'no longer' : percent(slowdown),
           known(lost) ? digits(lost, 3) + ' ms' : '–', text]);
  return lastBeneath(
      5,
      table(
          [unbroken('time'), number('step'), number('rank'), number('slower by'), number('costs a step'), long('what')],
          rows));
}

function ranks() {
  return oneEach((run, i) => {
    if (!run.heat || run.heat.quantities.length === 0)
      return element('div', {}, absent('ranks.h5 has no times of the ranks.'), stragglers(run));
    const map = new HeatMap(run.heat, names[i]);
    const {pp, dp, tp} = run.heat;
    const legend = `${whole(pp * dp * tp)} ranks: blocks are stages (pp ${pp}), rows tp ranks (${tp}), columns dp ` +
        `ranks (${dp}). Values are means over the steps of a slice of time; a rank is compared with ` +
        'the ranks that do the same work.';
    return element('div', {}, absent(legend), map.figure, element('h3', {}, 'Recorded stragglers'), stragglers(run));
  });
}

function waits() {
  return oneEach((run, i) => {
    if (run.waits.length === 0)
      return absent(
          'Neither steps nor a hang are recorded. While the run is active, `trireme timeline ' + run.dir +
          ' --record 3` records its next steps.');
    return element('div', {}, run.waits.map((one) => {
      const title =
          `${one.title}: ${one.source === 'dump' ? 'ranks that wait' : 'ranks whose compute waited'} for other ranks`;
      return element(
          'div', {}, element('h3', {}, title), one.headline ? element('p', {}, one.headline) : '',
          new MeshView(one, names[i]).figure);
    }));
  });
}

function checkpoints() {
  return oneEach((run) => {
    const {count, rows} = run.checkpoints;
    if (count === 0) return absent('No checkpoint was written.');
    const xs = rows.map((row) => row[0]);
    const view = makeView('step', (v) => whole(v), [Math.min(...xs) - (xs.length > 1 ? 0 : 1), Math.max(...xs)]);
    const of = (k) => rows.map((row) => row[k]),
          middle = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];
    const rate = rows.map((row) => row[2] / row[4]).filter(known);
    const plot = (title, k) => curvePlot({
      title,
      view,
      zero: true,
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
                `${bytesText(rows[rows.length - 1][2])}. Training waited ${duration(middle(of(3)))} (median; at most ` +
                `${duration(Math.max(...of(3)))}); written in ${duration(middle(of(4)))} (at most ${
                    duration(Math.max(...of(4)))}` +
                `${rate.length > 0 ? `; ${rateText(middle(rate))}` : ''}).`),
        element('div', {class: 'grid'}, plot('Time for which training waited', 3), plot('Time of writing', 4)));
  });
}

function incidents() {
  return oneEach((run) => {
    const {count, rows} = run.incidents;
    if (count === 0) return absent(run.wall ? 'None recorded.' : 'events.jsonl has no events.');
    const made = table(
        [unbroken('time'), number('step'), unbroken('kind'), long('what')],
        rows.map(
            ([time, step, kind, text]) => [moment(time), whole(step), element('span', {class: 'alarm'}, kind), text]));
    return element(
        'div', {}, count > rows.length ? absent(`The newest ${rows.length} of ${whole(count)}.`) : '',
        lastBeneath(3, made));
  });
}

function config() {
  const fields = [...new Set(runs.flatMap((run) => run.config.fields.map((field) => field[0])))];
  if (fields.length === 0) return absent('Neither resolved.yaml nor config.yaml can be read.');
  const values = runs.map((run) => new Map(run.config.fields));
  const differs = (name) => values.some((list) => list.get(name) !== values[0].get(name));
  const box = element('div', {class: 'scroll'}), state = {word: '', only: false};
  const build = () => {
    const shown = fields.filter(
        (name) => (!state.only || differs(name)) &&
            (name + ' ' + values.map((list) => list.get(name)).join(' ')).toLowerCase().includes(state.word));
    const made = table(
        [unbroken('field'), ...runs.map((_, i) => long(several ? nameTag(i) : 'value'))],
        shown.map(
            (name) => [(several && differs(name) ? '≠ ' : '') + name, ...values.map((list) => list.get(name) ?? '–')]));
    if (several)
      shown.forEach((name, i) => {
        if (differs(name)) made.tBodies[0].rows[i].className = 'differs';
      });
    box.replaceChildren(made);
  };
  build();
  const changes = oneEach(
      (run) => run.config.changes.length === 0 ?
          absent('No start has changed a field.') :
          element(
              'div', {class: 'across'},
              table(
                  ['start', unbroken('time'), unbroken('field'), long('before'), long('after')],
                  run.config.changes.map(
                      ([time, start, name, before, after]) =>
                          [start, moment(time), name, before || '–', after || '–']))));
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
    ['waits', 'Waits between ranks', waits], ['wall', 'Wall time', wallTime],
    ['checkpoints', 'Checkpoints', checkpoints], ['incidents', 'Incidents', incidents], ['config', 'Config', config]
  ];
  put(document.getElementById('page'), [
    element(
        'header', {}, element('h1', {}, 'Trireme: ' + names.join(' and ')),
        element('p', {class: 'faint'}, `Report written ${moment(report.made)} by trireme ${report.version}`)),
    element('nav', {'aria-label': 'Sections'}, sections.map(([id, title]) => element('a', {href: '#' + id}, title))),
    overview(), ...sections.map(([id, title, make]) => section(id, title, make()))
  ]);
  drawAll();
}
build();
// What a test looks for, and how long it took since the page was requested.
document.documentElement.dataset.drawn = String(Math.round(performance.now()));
