// The first screen: large figures with their curves, the incidents and the facts. For several runs, also a comparison.

// Creates a small curve without axes.
function sparkline(values, colour) {
  const points = values.map((v, i) => [i, v]).filter(([, v]) => known(v)), most = 160;
  if (points.length < 2) return '';
  const few = smoothed(points.map(([, v]) => v), points.length > most ? 2 * Math.ceil(points.length / most) + 1 : 1);
  const low = Math.min(...few), span = Math.max(...few) - low || 1, last = few.length - 1;
  const d =
      few.map((v, i) => `${i ? 'L' : 'M'}${(200 * i / last).toFixed(1)} ${(31 - 28 * (v - low) / span).toFixed(1)}`);
  return drawing('svg', {viewBox: '0 0 200 34', preserveAspectRatio: 'none', 'aria-hidden': 'true'}, drawing('path', {
                   d: d.join(''),
                   fill: 'none',
                   'vector-effect': 'non-scaling-stroke',
                   style: `stroke:${colour};stroke-width:1.6`
                 }));
}

const mean = (list) => list.reduce((sum, v) => sum + v, 0) / (list.length || 1);
// Returns the last loss and its change over the last tenth of the steps. Both use means over a few steps.
function lossTrend(run) {
  const loss = ((run.curves.loss || {}).mean || []).filter(known), part = Math.max(1, Math.round(loss.length / 50));
  if (loss.length === 0) return null;
  const at = Math.max(part, loss.length - Math.round(loss.length / 10)), last = loss[loss.length - 1];
  return {last, change: loss.length < 20 ? NaN : mean(loss.slice(-part)) - mean(loss.slice(at - part, at))};
}
const signed = (value, count) => (value > 0 ? '+' : value < 0 ? '−' : '') + digits(Math.abs(value), count);

// Returns the figures that are known, each as [title, value, explanation, values of the curve].
function figuresOf(run) {
  const list = [], {recent, wall} = run, trend = lossTrend(run), mid = (name) => (run.curves[name] || {}).mean || [];
  if (trend)
    list.push([
      'Loss', digits(trend.last, 4),
      known(trend.change) ? `${signed(trend.change, 2)} over the last tenth of the steps` : '', mid('loss')
    ]);
  if (known(recent.tokens_per_s))
    list.push([
      'Tokens per second', counted(recent.tokens_per_s),
      `median of the last ${whole(recent.steps)} steps; 90 % of them: ${counted(recent.tokens_low)} to ${
          counted(recent.tokens_high)}`,
      mid('tokens_per_s')
    ]);
  if (known(recent.mfu))
    list.push(['MFU', percent(recent.mfu), `median of the last ${whole(recent.steps)} steps`, mid('mfu')]);
  else if (known(recent.step_ms))
    list.push(['Time of a step', digits(recent.step_ms, 3) + ' ms', 'median of the last steps', mid('step_ms')]);
  if (!wall) return list;
  const length = wall.end - wall.begin || 1, productive = (wall.sums.productive || {seconds: 0}).seconds;
  list.push([
    'Effective time', percent(productive / length), `productive of ${duration(length)}`,
    (wall.slots.productive || []).map((v) => v || 0)
  ]);
  const amount = (count, noun) => `${whole(count)} ${noun}${count === 1 ? '' : 's'}`;
  list.push([
    'Attempts', whole(wall.attempts_in_all),
    `${amount(wall.lost, 'step')} lost; ${amount(wall.attempts.filter((a) => a.failed).length, 'failure')}`, []
  ]);
  return list;
}

function firstScreen() {
  return oneEach((run, i) => {
    const figures = figuresOf(run).map(
        ([title, value, text, values]) => element(
            'div', {}, element('span', {class: 'faint'}, title), element('b', {}, value),
            sparkline(values, runColour(i)), element('span', {class: 'faint'}, text)));
    const story = run.story.map(
        ([text, alarm]) => element(
            'li', {class: alarm ? 'alarm' : ''},
            alarm ? element('a', {href: '#incidents', class: 'alarm'}, text) : text));
    return element('div', {}, element('div', {class: 'figures'}, figures), element('ul', {class: 'story'}, story));
  });
}

// --- Several runs --------------------------------------------------------------------------------------------------

// The rows of the comparison: [name, function that returns a run's value, format].
const kCompared = [
  ['loss', (run) => (lossTrend(run) || {}).last, (v) => digits(v, 5)],
  ['validation loss', (run) => (run.evaluations[run.evaluations.length - 1] || [])[2], (v) => digits(v, 5)],
  ['tokens per second', (run) => run.recent.tokens_per_s, counted],
  ['ms per step', (run) => run.recent.step_ms, (v) => digits(v, 4)], ['MFU', (run) => run.recent.mfu, percent],
  ['steps', (run) => run.x.step[run.x.step.length - 1], whole],
  [
    'effective time',
    (run) =>
        run.wall && run.wall.sums.productive && run.wall.sums.productive.seconds / (run.wall.end - run.wall.begin || 1),
    percent
  ],
  ['steps lost', (run) => run.wall && run.wall.lost, whole],
  ['attempts', (run) => run.wall && run.wall.attempts_in_all, whole]
];

// Returns the difference from the first run: of counts "-2", of shares "+3.1 points", otherwise "+3.1 %"; for more than
// two runs, the range of differences.
function differenceOf(values, format) {
  const [first, ...others] = values, counts = format === whole, points = format === percent;
  if (!known(first) || (first === 0 && !counts && !points)) return '';
  const more = others.filter(known).map((v) => (counts || points ? v - first : v / first - 1));
  if (more.length === 0) return '';
  const tenths = (share) => Math.round(1000 * share) / 10;
  const text = (v) => (counts ? signed(v, 12) : signed(tenths(v), 3) + (points ? ' points' : ' %'));
  if (more.every((v) => (counts ? v === 0 : tenths(v) === 0))) return 'equal';
  return more.length === 1 ? text(more[0]) : `${text(Math.min(...more))} to ${text(Math.max(...more))}`;
}

// Fields that differ between any two runs.
const kOwnFields = ['run.name', 'run.dir', 'checkpoint.dir'];

function comparison() {
  if (!several) return '';
  const numbers = kCompared
                      .map(([name, of, format]) => {
                        const values = runs.map((run) => of(run));
                        return [name, ...values.map((v) => (known(v) ? format(v) : '–')), differenceOf(values, format)];
                      })
                      .filter((row) => row.slice(1).some((cell) => cell !== '–' && cell !== ''));
  const heads = runs.map((_, i) => number(nameTag(i)));
  const made =
      table([unbroken(''), ...heads, number(runs.length > 2 ? 'relative to the first' : 'difference')], numbers);
  numbers.forEach((row, i) => {
    if (row[row.length - 1] === 'equal') made.tBodies[0].rows[i].className = 'same';
  });
  const fields = configTable((name, differs) => differs && !kOwnFields.includes(name));
  const count = fields.tBodies[0].rows.length;
  const differ = count === 0 ? 'no field differs' : `${plural(count, 'field')} ${count === 1 ? 'differs' : 'differ'}`;
  return element(
      'div', {}, element('h3', {}, `Config: ${differ}`),
      count > 0 ? element('div', {class: 'scroll'}, fields) : '', element('h3', {}, 'Results'),
      element('div', {class: 'across'}, made));
}

// Creates a table of the config fields for which shown(name, whether it differs, its text) is true. Fields that
// differ come first.
function configTable(shown) {
  const values = runs.map((run) => new Map(run.config.fields));
  const differs = (name) => values.some((list) => list.get(name) !== values[0].get(name));
  const fields = [...new Set(runs.flatMap((run) => run.config.fields.map((field) => field[0])))].filter(
      (name) => shown(name, differs(name), name + ' ' + values.map((list) => list.get(name)).join(' ')));
  fields.sort((a, b) => differs(b) - differs(a));
  const made = table(
      [unbroken('field'), ...runs.map((_, i) => long(several ? nameTag(i) : 'value'))],
      fields.map(
          (name) => [(several && differs(name) ? '≠ ' : '') + name, ...values.map((list) => list.get(name) ?? '–')]));
  if (several) fields.forEach((name, i) => made.tBodies[0].rows[i].className = differs(name) ? 'differs' : 'same');
  return made;
}

function overview() {
  const labels = [...new Set(runs.flatMap((run) => run.facts.map((fact) => fact[0])))];
  const rows = labels
                   .map((label) => [element('strong', {}, label), ...runs.map((run) => {
                          const fact = run.facts.find((f) => f[0] === label);
                          return (fact && fact[1]) || '–';
                        })])
                   .filter((row) => row.slice(1).some((cell) => cell !== '–'));
  const remarks = runs.flatMap((run, i) => run.remarks.map((text) => (several ? names[i] + ': ' : '') + text));
  const notes = remarks.map((text) => absent('Note: ' + text));
  if (!several) {  // two tables next to each other
    const half = Math.ceil(rows.length / 2), heads = [unbroken(''), long('')];
    const part = (list) => element('div', {class: 'across'}, table(heads, list));
    return element(
        'div', {}, element('div', {class: 'pair'}, part(rows.slice(0, half)), part(rows.slice(half))), notes);
  }
  const made = table([unbroken(''), ...runs.map((_, i) => long(nameTag(i)))], rows);
  rows.forEach((row, i) => {
    if (row.slice(1).every((cell) => cell === row[1])) made.tBodies[0].rows[i].className = 'same';
  });
  return element('div', {class: 'across'}, made, notes);
}

function samples() {
  return oneEach((run) => {
    if (run.samples.length === 0) return absent('No sample of text was generated (run.sample_tokens).');
    const [newest, ...older] = [...run.samples].reverse();
    const one = ([step, text]) => element(
        'div', {}, element('span', {class: 'faint'}, `step ${whole(step)}`), element('pre', {class: 'sample'}, text));
    return element(
        'div', {}, one(newest),
        older.length > 0 ? element('details', {}, element('summary', {}, `${older.length} earlier`), older.map(one)) :
                           '');
  });
}
