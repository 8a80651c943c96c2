// The sections of a simulation's page, created from the data that the program embeds in it.

const report = JSON.parse(document.getElementById('data').textContent);
const simulated = report.simulation;
// The relative uncertainty of predictions, from the error table of the cluster file, or null if it has no table.
const uncertainty = simulated.uncertainty;
const seconds = (value) => (value < 0.1 ? digits(1000 * value, 3) + ' ms' : digits(value, 3) + ' s');
const within = known(uncertainty) && uncertainty > 0 ? ` ± ${digits(100 * uncertainty, 2)} %` : '';
// Formats a number for tables with no more digits than the uncertainty justifies.
const figure = within ? Math.max(2, Math.ceil(-Math.log10(uncertainty)) + 1) : 3;
const predicted = (value) => (value < 0.1 ? digits(1000 * value, figure) + ' ms' : digits(value, figure) + ' s');
const mfu = (row) => (within ? digits(100 * row.mfu, figure) : (100 * row.mfu).toFixed(1)) + ' %';
const pointsOfMfu = (gain) => {  // shows a sign unless the value rounds to zero
  const text = (100 * gain).toFixed(1);
  return Number(text) === 0 ? '0.0' : gain > 0 ? '+' + text : text;
};
const wide = (heads, rows) => element('div', {class: 'across'}, table(heads, rows));
const absent = (text) => element('p', {class: 'faint'}, text);

// Layouts that were searched have the axes of the simulated one, except for cp.
const layoutText = (l) => [...report.axes.filter((axis) => axis in l).map((axis) => `${axis} ${l[axis]}`),
                           ...(l.chunks > 1 ? [`${l.chunks} chunks`] : [])]
                              .join(', ');

// The summary at the top: how this layout compares with the best one, and how certain the figures are.
function story() {
  const list = [], best = report.layouts[0];
  if (!simulated.fits) list.push(['the config does not fit into the memory of the fullest rank', true]);
  if (simulated.tight) list.push(['less than 5 % of the memory is left on the fullest rank', true]);
  if (best) {
    const more = simulated.step_s / best.seconds - 1, sure = Math.max(0.005, uncertainty || 0);
    const other = `${layoutText(best.layout)}, microbatches of ${best.layout.micro_batch}: ${predicted(best.seconds)}`;
    if (more > sure)
      list.push([`${digits(100 * more, 2)} % slower than the best layout that fits (${other})`, true]);
    else
      list.push(['no layout that fits is faster by more than the uncertainty', false]);
  }
  list.push([
    within ? `every time and rate is uncertain by${within}, as the cluster file states` :
             'the cluster file states no uncertainty, so that of the step is unknown',
    false
  ]);
  list.push([report.sources, false]);
  for (const note of simulated.notes) list.push([note, false]);
  return element(
      'ul', {class: 'story'}, list.map(([text, alarm]) => element('li', {class: alarm ? 'alarm' : ''}, text)));
}

function overview() {
  const l = simulated.layout, f = simulated.faults;
  const box = (title, value, text) => element(
      'div', {}, element('span', {class: 'faint'}, title), element('b', {}, value),
      element('span', {class: 'faint'}, text));
  const parts = [
    layoutText(l), `${l.num_microbatches} microbatches of ${l.micro_batch}`, `zero ${l.zero}`,
    `recompute ${l.recompute}`, l.numbers
  ];
  return element(
      'div', {},
      element(
          'div', {class: 'figures'}, box('Step', predicted(simulated.step_s), within || 'uncertainty unknown'),
          box('Tokens per second', counted(simulated.tokens_per_s), within),
          box('MFU', mfu(simulated),
              `${digits(simulated.tflops_per_rank, 3)} of ${whole(simulated.mfu_peak_tflops)} TFLOP/s per rank${
                  within}`),
          box('Memory', bytesText(simulated.memory_bytes),
              'of the fullest rank' + (simulated.tight ? ': a tight fit' : simulated.fits ? '' : ': does not fit')),
          box('Under faults', percent(f.effective), `of the time is training; a fault every ${duration(f.mtbf_s)}`)),
      story(), wide([unbroken(''), long('')], [
        ['Cluster', report.cluster], ['Ranks', whole(simulated.ranks)], ['Layout', parts.join(', ')],
        ['Spare machines', String(f.spares)]
      ]));
}

function step() {
  const parts = simulated.parts_s, sum = Object.values(parts).reduce((a, b) => a + Math.max(0, b), 0);
  const shares = Object.fromEntries(Object.entries(parts).map(([name, value]) => [name, Math.max(0, value) / sum]));
  const describe = (name) => `${partName(name)} ${predicted(parts[name])} (${percent(shares[name])})`;
  const names = Object.keys(kPredictedParts).filter((name) => shares[name] > 0);
  return element(
      'div', {}, shareBar(shares, kPredictedParts, describe), partLegend(names),
      element(
          'div', {class: 'across'},
          wide(
              [unbroken('part'), number('time'), number('share'), long('meaning')],
              names.map(
                  (name) =>
                      [partName(name), predicted(parts[name]), percent(shares[name]), kPredictedParts[name][3]]))));
}

function scaling(rows, words) {
  if (rows.length === 0) return absent('The config has more ranks than --to, so no scaling was simulated.');
  return element(
      'div', {}, absent(words), barPlot({
        title: 'Parts of a step; above bars: MFU',
        share: true,
        looks: kPredictedParts,
        format: seconds,
        bars: rows.map((row) => ({head: mfu(row), feet: [whole(row.ranks), predicted(row.seconds)], parts: row.parts}))
      }),
      wide(
          ['ranks', 'dp', 'batch', 'step', 'tokens per second', 'MFU'].map(number),
          rows.map(
              (row) =>
                  [whole(row.ranks), whole(row.dp), whole(row.global_batch), predicted(row.seconds),
                   counted(row.tokens_per_s), mfu(row)])));
}

function ablation() {
  const own = report.ablation[0];
  const words = (name) => {  // splits a name into lines of a bar's width
    const lines = [''];
    for (const word of name.split(' '))
      if (lines[lines.length - 1].length + word.length > 11 && lines[lines.length - 1])
        lines.push(word);
      else
        lines[lines.length - 1] += (lines[lines.length - 1] ? ' ' : '') + word;
    return lines;
  };
  return element(
      'div', {}, absent('The same step with one choice of the config removed. Above bars: MFU.'), barPlot({
        title: 'Seconds of a step',
        looks: kPredictedParts,
        format: seconds,
        bars: report.ablation.map((row) => ({head: mfu(row), feet: words(row.name), parts: row.parts}))
      }),
      wide(
          [unbroken(''), number('step'), number('MFU'), number('points of MFU')],
          report.ablation.map(
              (row) =>
                  [row.name, predicted(row.seconds), mfu(row), row === own ? '' : pointsOfMfu(row.mfu - own.mfu)])));
}

function layouts() {
  if (report.layouts.length === 0) return absent('No layout of these ranks fits into memory.');
  return element(
      'div', {}, absent('The fastest layouts that divide the model and fit into memory. Above bars: MFU.'), barPlot({
        title: 'Seconds of a step',
        looks: kPredictedParts,
        format: seconds,
        bars: report.layouts.map((row) => ({
                                   head: mfu(row),
                                   feet: [
                                     `tp ${row.layout.tp}`, `pp ${row.layout.pp} x ${row.layout.chunks}`,
                                     `dp ${row.layout.dp}`, `micro ${row.layout.micro_batch}`
                                   ],
                                   parts: row.parts
                                 }))
      }),
      wide(
          ['tp', 'pp', 'chunks', 'dp', 'microbatch', 'zero'].map(number).concat([
            'recompute', number('step'), unbroken(''), number('tokens per second'), number('MFU'), number('memory'),
            unbroken('')
          ]),
          report.layouts.map((row) => {
            const l = row.layout;
            return [
              l.tp, l.pp, l.chunks, l.dp, l.micro_batch, l.zero, l.recompute, predicted(row.seconds),
              row.equal ? 'equal to the first' : '', counted(row.tokens_per_s), mfu(row), bytesText(row.memory_bytes),
              row.tight ? 'tight' : ''
            ];
          })));
}

function startUp() {
  return element(
      'div', {},
      absent(
          'Collective calls and the bytes that each rank receives in them; communication groups, and the messages of ' +
          'all ranks that set them up; loading a checkpoint.'),
      wide(
          [
            'ranks', 'calls', 'bytes per rank', 'call time', 'groups', 'messages', 'bytes', 'group time',
            'token readers', 'load time'
          ].map(number),
          report.start.map(
              (row) =>
                  [whole(row.ranks), whole(row.calls), bytesText(row.gathered_bytes), seconds(row.exchange_s),
                   whole(row.groups), counted(row.messages), bytesText(row.message_bytes), seconds(row.groups_s),
                   whole(row.data_readers), seconds(row.load_s)])));
}

const sections = [
  ['step', 'Time of a step', step],
  ['weak', 'Weak scaling', () => scaling(report.weak, 'The batch grows with the replicas.')],
  ['strong', 'Strong scaling', () => scaling(report.strong, 'The batch is fixed, down to one microbatch per replica.')],
  ['ablation', 'What each choice gains', ablation], ['layouts', 'Layouts', layouts], ['start', 'Start-up', startUp]
];
put(document.getElementById('page'), [
  element(
      'header', {}, element('h1', {}, 'Trireme: ' + report.name + ', simulated'),
      element('p', {class: 'faint'}, `Made by trireme ${report.version}`)),
  element('nav', {'aria-label': 'Sections'}, sections.map(([id, title]) => element('a', {href: '#' + id}, title))),
  overview(), ...sections.map(([id, title, make]) => section(id, title, make()))
]);
drawAll();
// Tests look for this attribute. Its value is the time in ms since the page was requested.
document.documentElement.dataset.drawn = String(Math.round(performance.now()));
