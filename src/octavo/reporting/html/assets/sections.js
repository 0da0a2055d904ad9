// The parts of the page. Each takes the sides that know something, and gives a node or nothing.

const actions = { tensor: () => false, node: () => false };

const heading = (side) => (side.letter ? el('h3', { class: 'sub' }, letter(side), side.name) : null);

const each = (sides, make) => (sides.length > 1 ? el('div', { class: 'pair' }, sides.map((side) => el('div', {}, heading(side), make(side)))) : el('div', {}, make(sides[0])));

function summary(sides) {
  return {
    title: 'Summary',
    node: each(sides, (side) => el('dl', { class: 'figures' }, side.figures.map((figure) => el(
      'div', { class: `figure ${figure.level}` }, el('dt', {}, figure.label), el('dd', { class: 'value' }, figure.value), el('dd', { class: 'detail' }, figure.detail),
    )))),
  };
}

function tried(sides) {
  const with_it = sides.filter((side) => side.tuning);
  if (!with_it.length) return null;
  const figure = (value, digits) => (Number.isFinite(Number(value)) && known(value) ? Number(value).toFixed(digits) : '–');
  const part = (side) => {
    const { tuning } = side;
    const drawing = document.getElementById(`front-${sides.indexOf(side)}`);
    const scored = (tuning.trials.find((trial) => trial.score) || {}).score;
    return el('div', {},
      el('p', {}, tuning.reason),
      drawing ? el('figure', { class: 'front' }, drawing.content.cloneNode(true)) : null,
      table({
        caption: 'Trials', rows: tuning.trials, free: true,
        columns: [
          { label: 'tried', value: (row) => row.name, show: (row) => [`${tuning.trials.indexOf(row) + 1}. `, named(row.name), row.name === tuning.best ? el('strong', {}, ' (chosen)') : null] },
          { label: 'speed, × float', numeric: true, value: (row) => (row.speed ? row.speed.value : null), show: (row) => (row.speed ? `${figure(row.speed.value, 2)} (${figure(row.speed.low, 2)} … ${figure(row.speed.high, 2)})` : '–') },
          { label: 'SQNR, dB', numeric: true, value: (row) => Number(row.sqnr_db), show: (row) => figure(row.sqnr_db, 1) },
          { label: 'same class', numeric: true, value: (row) => row.agreement, show: (row) => (known(row.agreement) ? `${percent(row.agreement)}${tuning.held_back ? ` ± ${halfWidth(row.agreement, Math.min(row.places || tuning.held_back, tuning.held_back)).toFixed(1)}` : ''}` : '–') },
          ...(scored ? [{ label: scored.name, numeric: true, value: (row) => (row.score ? row.score.value : null), show: (row) => (row.score ? metric(row.score.value, row.score) : '–') }] : []),
          { label: 'size', numeric: true, value: (row) => row.bytes, show: (row) => bytes(row.bytes) },
          { label: 'what it does', prose: true, value: (row) => row.error || row.idea },
        ],
      }).node,
      tuning.layers.length ? el('div', {}, el('h3', { class: 'sub' }, 'Sensitivity of layers'), el('p', { class: 'muted' }, 'What each quantized layer of the trial that others started from loses by itself, on float inputs.'), table({
        caption: 'Layers by what they lose alone', rows: tuning.layers, onselect: (row) => actions.node(row.node),
        columns: [
          { label: 'layer', wide: true, value: (row) => row.node, show: (row) => named(row.node) }, { label: 'op type', value: (row) => row.op_type },
          { label: 'SQNR, dB', numeric: true, value: (row) => Number(row.sqnr_db), show: (row) => figure(row.sqnr_db, 1) },
        ],
      }).node) : null);
  };
  return { title: 'What was tried', lead: 'Ways to quantize this model, timed in turn with float and compared with it on samples that calibration has not seen. Dots in the drawing have the numbers of the table.', node: each(with_it, part) };
}

function accuracy(sides) {
  const with_it = sides.filter((side) => side.evaluation);
  if (!with_it.length) return null;
  const sign = (value) => (value < 0 ? '−' : value > 0 ? '+' : '');
  const unit = (score, value) => (score.percent ? `${(100 * value).toFixed(1)} points` : metric(value, score));
  // An interval that reaches much further on one side is told by its ends.
  const gap = (score, one) => {
    const bare = (value) => `${sign(value)}${unit(score, Math.abs(value)).replace(' points', '')}`;
    const skewed = known(one.low) && known(one.high) && Math.abs((one.low + one.high) / 2 - one.value) > 0.2 * one.half_width;
    return `${sign(one.value)}${unit(score, Math.abs(one.value))} ${skewed ? `(${bare(one.low)} … ${bare(one.high)})` : `± ${unit(score, one.half_width).replace(' points', '')}`}`;
  };
  // Several models of one task: a row for each, the reference first.
  const together = (evaluations) => {
    const [{ evaluation: first }] = evaluations;
    if (evaluations.length < 2 || evaluations.some(({ evaluation: one }) => one.task !== first.task)) return null;
    const rows = [
      ...(first.against && evaluations.every(({ evaluation: one }) => one.against === first.against) ? [{ name: 'reference', scores: first.against_scores, lost: null }] : []),
      ...evaluations.map((side) => ({ side, name: side.name, scores: side.evaluation.scores, lost: side.evaluation.differences[0] })),
    ];
    const own = (row, score) => row.scores.find((one) => one.name === score.name) || {};
    const [main] = first.scores;
    return table({
      caption: 'All models', rows, free: true,
      columns: [
        { label: 'model', value: (row) => row.name, show: (row) => [row.side ? letter(row.side) : null, row.name] },
        ...first.scores.map((score) => ({ label: score.name, numeric: true, value: (row) => own(row, score).value, show: (row) => metric(own(row, score).value, score) })),
        { label: `difference of ${main.name}`, numeric: true, value: (row) => (row.lost || {}).value, show: (row) => (row.lost ? gap(main, row.lost) : '–') },
      ],
    }).node;
  };
  const part = (side) => {
    const { evaluation } = side;
    const before = new Map(evaluation.against_scores.map((score) => [score.name, score]));
    const lost = new Map(evaluation.differences.map((one) => [one.name, one]));
    const interval = (score) => (known(score.low) && known(score.high) ? `${metric(score.low, score)} … ${metric(score.high, score)}` : '–');
    const columns = [
      { label: 'metric', value: (score) => score.name },
      ...(evaluation.against ? [{ label: 'reference', numeric: true, value: (score) => (before.get(score.name) || {}).value, show: (score) => (before.has(score.name) ? metric(before.get(score.name).value, score) : '–') }] : []),
      { label: 'model', numeric: true, value: (score) => score.value, show: (score) => metric(score.value, score) },
      { label: '95 % interval', numeric: true, value: (score) => score.low, show: interval },
    ];
    if (evaluation.differences.length) {
      columns.push({ label: 'difference', numeric: true, value: (score) => (lost.get(score.name) || {}).value, show: (score) => { const one = lost.get(score.name); return one ? gap(score, one) : '–'; } });
      columns.push({ label: 'significance', value: (score) => (lost.has(score.name) ? String(lost.get(score.name).significant) : null), show: (score) => (lost.has(score.name) ? (lost.get(score.name).significant ? 'beyond noise' : 'within noise') : '') });
    }
    const classes = evaluation.per_class.model;
    const reference = new Map(evaluation.per_class.against.map((one) => [one.name, one.value]));
    const kind = { name: evaluation.per_class.figure, percent: evaluation.per_class.figure !== 'sqnr_db' };
    return el('div', {},
      el('p', { class: 'muted' }, `${evaluation.task}, ${counted(evaluation.samples, 'sample')}`),
      table({ caption: 'Figures of the evaluation', columns, rows: evaluation.scores, free: true }).node,
      classes.length ? el('details', { class: 'data', open: with_it.length < 2 && classes.length <= 12 }, el('summary', {}, `By ${kind.percent ? 'class' : 'output'} (${classes.length})`), table({
        caption: 'Figures by class', rows: classes,
        search: classes.length > 12 ? { label: 'Search classes', text: (row) => row.name } : null,
        columns: [
          { label: 'name', value: (row) => row.name },
          ...(reference.size ? [
            { label: 'reference', numeric: true, value: (row) => reference.get(row.name), show: (row) => metric(reference.get(row.name), kind) },
            { label: 'difference', numeric: true, value: (row) => (reference.has(row.name) && known(row.value) ? row.value - reference.get(row.name) : null), show: (row) => { const d = row.value - reference.get(row.name); return Number.isFinite(d) ? `${sign(d)}${unit(kind, Math.abs(d))}` : '–'; } },
          ] : []),
          { label: evaluation.per_class.figure || 'model', numeric: true, value: (row) => row.value, show: (row) => metric(row.value, kind) },
          { label: 'count', numeric: true, value: (row) => row.count },
        ],
      }).node) : null);
  };
  return { title: 'Accuracy', lead: 'How accurate the model is, with 95 % confidence intervals; all models saw the same samples.', node: el('div', {}, together(with_it), each(with_it, part)) };
}

function depth(sides) {
  const with_it = sides.filter((side) => side.depth.length);
  if (!with_it.length) return null;
  const lowest = (side) => side.depth.filter((row) => row.local && known(row.local.sqnr)).sort((a, b) => a.local.sqnr - b.local.sqnr)[0];
  const said = with_it.map((side) => { const row = lowest(side); return row ? tag(side, `lowest by itself is ${row.op} ${short(row.node || row.tensor)} with ${decibels(row.local.sqnr)} dB`) : ''; }).join('. ');
  const picture = chart(`SQNR of ${with_it[0].depth.length} operators along the depth of the network. ${said}. The table below holds the same figures.`, depthOption(with_it), {
    onclick: (item) => { const { row } = depthPoint(with_it, item); actions.tensor(row.tensor); actions.node(row.node); },
  });
  const rows = with_it.flatMap((side) => side.depth.map((row, index) => ({ ...row, index, side })));
  const listing = table({
    caption: 'Error by operator, in the order of the network', rows,
    search: { label: 'Search operators and tensors', text: (row) => `${row.op} ${row.node || ''} ${row.tensor}` },
    onselect: (row) => { actions.tensor(row.tensor); actions.node(row.node); },
    columns: [
      { label: 'tensor', wide: true, value: (row) => row.tensor, show: (row) => named(row.tensor) },
      ...(sides.length > 1 ? [{ label: 'of', value: (row) => row.side.letter }] : []),
      { label: 'place', numeric: true, value: (row) => row.index },
      { label: 'op', value: (row) => row.op },
      { label: 'alone, dB', numeric: true, value: (row) => row.local && row.local.sqnr, show: (row) => decibels(row.local && row.local.sqnr) },
      { label: 'up to here, dB', numeric: true, value: (row) => row.total && row.total.sqnr, show: (row) => decibels(row.total && row.total.sqnr) },
      { label: 'cosine', numeric: true, value: (row) => row.total && row.total.cosine, show: (row) => (row.total && known(row.total.cosine) ? row.total.cosine.toFixed(4) : '–') },
      { label: 'max error', numeric: true, value: (row) => row.total && row.total.max_error, show: (row) => compact(row.total && row.total.max_error) },
      { label: 'clipped', numeric: true, value: (row) => row.clipped, show: (row) => share(row.clipped) },
      { label: 'range used', numeric: true, value: (row) => row.used, show: (row) => share(row.used) },
    ],
  });
  return {
    title: 'Error by layer',
    lead: 'SQNR is the energy of a tensor over that of its error. “Operator alone” feeds each operator with float inputs, so that it names the culprit; “model up to here” carries along what came before.',
    node: el('div', {}, picture.node, el('p', { class: 'muted hint' }, 'Drag the bar below the chart, or hold Ctrl and turn the wheel, to zoom; click a point to see its tensor. Points above 70 dB are drawn at 70: up there only float rounding is left.'),
      el('details', { class: 'data' }, el('summary', {}, 'The same as a table'), listing.node),
      each(with_it, (side) => el('div', {}, outputs(side), culprits(side)))),
  };
}

function outputs(side) {
  if (!side.outputs.length) return null;
  return el('div', {}, el('h3', { class: 'sub' }, 'Outputs'), table({
    caption: 'Error of the outputs', rows: side.outputs, free: side.outputs.length < 12,
    columns: [
      { label: 'output', value: (row) => row.name, show: (row) => named(row.name) },
      { label: 'SQNR, dB', numeric: true, value: (row) => row.errors && row.errors.sqnr, show: (row) => decibels(row.errors && row.errors.sqnr) },
      { label: 'cosine', numeric: true, value: (row) => row.errors && row.errors.cosine, show: (row) => (row.errors && known(row.errors.cosine) ? row.errors.cosine.toFixed(5) : '–') },
      { label: 'max error', numeric: true, value: (row) => row.errors && row.errors.max_error, show: (row) => compact(row.errors && row.errors.max_error) },
      { label: 'optimized vs not, dB', numeric: true, value: (row) => row.execution && row.execution.sqnr, show: (row) => decibels(row.execution && row.execution.sqnr) },
    ],
  }).node);
}

function culprits(side) {
  const title = el('h3', { class: 'sub' }, 'Culprits, the worst first');
  if (!side.culprits.length) return el('div', {}, title, el('p', {}, 'None: every operator by itself is close to float.'));
  const item = (one) => el('li', {},
    el('button', { class: 'link', type: 'button', onclick: () => { actions.tensor(one.tensor); actions.node(one.node); } }, named(one.tensor)),
    ` (${one.kind}): ${decibels(one.sqnr)} dB at ${one.op_type} `, named(one.node),
    el('p', {}, one.text), el('p', {}, el('strong', {}, `${one.label}: `), one.change));
  const [shown, rest] = [side.culprits.slice(0, 5), side.culprits.slice(5)];
  return el('div', {}, title, el('ol', { class: 'culprits' }, shown.map(item)),
    rest.length ? el('details', { class: 'data' }, el('summary', {}, `${rest.length} more`), el('ol', { class: 'culprits' }, rest.map(item))) : null);
}

function graphs(sides) {
  const with_it = sides.filter((side) => side.graph && side.graph.nodes.length);
  if (!with_it.length) return null;
  const place = el('div');
  const made = new Map();
  const show = (side) => {
    if (!made.has(side)) made.set(side, graphPart(side));
    place.replaceChildren(made.get(side).node);
    made.get(side).paint();
  };
  actions.node = (name) => { const part = [...made.values()].find((one) => one.node.isConnected); return part ? part.select(name) : false; };
  show(with_it[0]);
  const chooser = with_it.length > 1 ? el('div', { class: 'tools' }, el('label', {}, 'Graph of', el('select', { onchange: (event) => show(with_it[Number(event.target.value)]) }, with_it.map((side, index) => el('option', { value: index }, `${side.letter}: ${side.name}`))))) : null;
  return { title: 'Graph', lead: 'The operators of the quantized model; conversions between float and integers are left out.', node: el('div', {}, chooser, place), painted: () => [...made.values()].forEach((one) => one.paint()) };
}

function graphPart(side) {
  const { graph } = side;
  const total = graph.us;
  const placed = graph.nodes.reduce((sum, node) => sum + (node.us || 0), 0);
  const tensors = new Map(side.depth.map((row) => [row.node, row.tensor]));
  const picked = el('div', { class: 'picked', 'aria-live': 'off' }, el('p', { class: 'muted' }, 'Select an operator to read about it.'));
  const time = (node) => (known(node.us) ? `${duration(node.us * 1e-6)}, ${share(node.us / total)}` : null);
  const describe = (node) => [node.op, short(node.name), STATES[node.state][0], node.why, known(node.local) ? `alone ${decibels(node.local)} dB` : null, known(node.total) ? `up to here ${decibels(node.total)} dB` : null, time(node)].filter(Boolean).join(', ');
  const onselect = (node) => {
    picked.replaceChildren(el('strong', {}, node.op), ' ', named(node.name), facts([
      ['what became of it', el('span', { class: `state ${node.state}` }, STATES[node.state][0])], ['why', node.why],
      ['error alone', known(node.local) ? `${decibels(node.local)} dB` : null], ['error up to here', known(node.total) ? `${decibels(node.total)} dB` : null], ['time', time(node)],
    ]), tensors.has(node.name) ? el('button', { type: 'button', onclick: () => actions.tensor(tensors.get(node.name)) }, 'Show its tensor') : null);
    listing.select(node.name);
  };
  const has = (key) => graph.nodes.some((node) => known(node[key]));
  const listing = table({
    caption: 'Operators', rows: graph.nodes.filter((node) => node.state !== 'end'),
    search: { label: 'Search operators', text: (node) => `${node.op} ${node.name} ${node.state} ${node.why || ''}` },
    filter: { label: 'What became of it', value: (node) => STATES[node.state][0] },
    key: (node) => node.name,
    onselect: (node) => { if (!actions.node(node.name)) onselect(node); },
    columns: [
      { label: 'operator', wide: true, value: (node) => node.name, show: (node) => named(node.name) },
      { label: 'op type', value: (node) => node.op },
      { label: 'what became of it', value: (node) => STATES[node.state][0], show: (node) => el('span', { class: `state ${node.state}` }, STATES[node.state][0]) },
      { label: 'why', wide: true, value: (node) => node.why, show: (node) => node.why || '' },
      ...(has('local') ? [{ label: 'alone, dB', numeric: true, value: (node) => node.local, show: (node) => decibels(node.local) }] : []),
      ...(has('total') ? [{ label: 'up to here, dB', numeric: true, value: (node) => node.total, show: (node) => decibels(node.total) }] : []),
      ...(has('us') ? [{ label: 'time', numeric: true, value: (node) => node.us, show: (node) => duration(known(node.us) ? node.us * 1e-6 : null) }] : []),
    ],
  });
  if (!graph.drawn) return { node: el('div', {}, el('p', { class: 'notice' }, `This graph has ${graph.nodes.length} operators, too many to draw; they are listed below.`), picked, listing.node), paint: () => {}, select: () => false };
  const picture = drawing(graph, { onselect, describe });
  const button = (text, label, act) => el('button', { type: 'button', 'aria-label': label, title: label, onclick: act }, text);
  const tools = el('div', { class: 'tools' },
    el('label', {}, 'Colour by', el('select', { id: `colour${side.letter}`, onchange: (event) => picture.recolour(event.target.value) }, Object.entries(picture.modes).map(([name, mode]) => el('option', { value: name }, mode.label)))),
    button('+', 'Zoom in', () => picture.zoom(1.3)), button('−', 'Zoom out', () => picture.zoom(0.77)), button('Fit', 'Show the whole graph', picture.fit));
  const hint = el('p', { class: 'muted hint' }, 'Drag to move; ', el('kbd', {}, 'Ctrl'), ' + wheel or ', el('kbd', {}, '+'), ' ', el('kbd', {}, '−'), ' to zoom; arrow keys follow the network. The strip on the right shows the whole.', known(total) ? ` Of the time, ${share(placed / total)} belongs to operators drawn here; the rest are conversions, and what the runtime fused under names of its own.` : null);
  return { node: el('div', {}, tools, picture.stage, picture.legend, hint, picked, listing.node), paint: picture.paint, select: picture.select, picture };
}

function tensorTable(sides) {
  const with_it = sides.filter((side) => side.tensors.length);
  if (!with_it.length) return null;
  const id = (tensor) => (known(tensor.reader) ? `${tensor.tensor} → ${tensor.reader}` : tensor.tensor);
  const maps = with_it.map((side) => new Map(side.tensors.map((tensor) => [id(tensor), tensor])));
  const ids = [...new Set(maps.flatMap((map) => [...map.keys()]))];
  const rows = ids.map((key) => { const own = maps.map((map) => map.get(key)); return { key, own, one: own.find(Boolean) }; });
  const panel = el('div', { id: 'tensor', 'aria-live': 'off' });
  let logarithmic = true;
  let current = null;
  function show(row) {
    current = row;
    listing.select(row.key);
    charts.splice(0, charts.length, ...charts.filter((entry) => { if (panel.contains(entry.node)) { if (entry.chart) entry.chart.dispose(); return false; } return true; }));
    const parts = row.own.map((tensor, index) => (tensor ? inspector(tensor, with_it[index]) : el('p', { class: 'notice' }, letter(with_it[index]), 'not quantized here')));
    panel.replaceChildren(parts.length > 1 ? el('div', { class: 'pair block' }, parts) : parts[0]);
    say(`Tensor ${short(row.key)}, ${row.one.how}`);
  }
  function inspector(tensor, side) {
    const has = tensor.histogram;
    const picture = has ? chart(`Histogram of ${short(id(tensor))}: ${has.counts.reduce((sum, n) => sum + n, 0)} values from ${compact(has.low)} to ${compact(has.low + has.width * has.counts.length)}${tensor.range ? `, chosen range ${span(tensor.range)}` : ''}.`, histogramOption(tensor, side, logarithmic), { low: true }) : null;
    const many = tensor.scales > 1 ? ` (${tensor.scales} scales)` : '';
    return el('div', { class: 'inspector' }, el('h3', {}, letter(side), named(id(tensor))),
      el('div', {}, picture ? picture.node : el('p', { class: 'notice' }, tensor.seen ? `Calibration kept the extremes of this tensor only: ${span(tensor.seen)}.` : 'No values of this tensor were kept.')),
      facts([
        ['kind', tensor.kind], ['type', tensor.type ? `${tensor.type}${many}` : null], ['how', tensor.how || null],
        ['chosen range', tensor.range ? span(tensor.range) : null], ['values seen', tensor.seen ? span(tensor.seen) : null],
        ['scale', tensor.scale ? span(tensor.scale) : null], ['zero point', tensor.zero_point ? span(tensor.zero_point) : null],
        ['clipped', known(tensor.clipped) ? share(tensor.clipped) : null], ['range used', known(tensor.used) ? share(tensor.used) : null],
        ['SQNR', known(tensor.sqnr) ? `${decibels(tensor.sqnr)} dB` : null],
      ]));
  }
  const text = (tensor) => (tensor ? [tensor.type || '', tensor.granularity && tensor.scales > 1 ? `/${tensor.granularity.split(':')[0]}` : ''].join('') : 'float');
  const per = (label, value, shown, numeric = true) => with_it.map((side, index) => ({ label: tag(side, label), numeric, value: (row) => (row.own[index] ? value(row.own[index]) : null), show: (row) => (row.own[index] ? shown(row.own[index]) : '–') }));
  const listing = table({
    caption: 'The plan, tensor by tensor', rows, key: (row) => row.key, onselect: show,
    search: { label: 'Search the plan', text: (row) => `${row.key} ${row.own.filter(Boolean).map((tensor) => `${tensor.kind} ${text(tensor)} ${tensor.how}`).join(' ')}` },
    filter: { label: 'Kind', value: (row) => row.one.kind },
    columns: [
      { label: 'tensor', wide: true, value: (row) => row.key, show: (row) => [named(row.one.tensor), known(row.one.reader) ? el('span', { class: 'muted' }, ' for ', named(row.one.reader)) : null] },
      { label: 'kind', value: (row) => row.one.kind },
      ...per('type', text, text, false),
      ...(with_it.length > 1 ? [] : [{ label: 'how', wide: true, value: (row) => row.one.how }]),
      ...per('range', (tensor) => (tensor.range ? tensor.range[1] - tensor.range[0] : null), (tensor) => span(tensor.range)),
      ...(with_it.length > 1 ? [] : [{ label: 'scale', numeric: true, value: (row) => (row.one.scale ? row.one.scale[1] : null), show: (row) => span(row.one.scale) },
        { label: 'zero point', numeric: true, value: (row) => (row.one.zero_point ? row.one.zero_point[0] : null), show: (row) => span(row.one.zero_point) }]),
      ...(with_it.some((side) => side.tensors.some((tensor) => known(tensor.sqnr))) ? per('SQNR, dB', (tensor) => tensor.sqnr, (tensor) => decibels(tensor.sqnr)) : []),
    ],
  });
  actions.tensor = (name) => { const row = rows.find((one) => one.one.tensor === name && one.own.some((tensor) => tensor && tensor.histogram)) || rows.find((one) => one.one.tensor === name); if (row) show(row); return Boolean(row); };
  const scale = el('button', { type: 'button', 'aria-pressed': 'true', onclick: () => { logarithmic = !logarithmic; scale.setAttribute('aria-pressed', String(logarithmic)); if (current) show(current); } }, 'Logarithmic counts');
  const blamed = new Set(with_it.flatMap((side) => side.culprits.slice(0, 1).map((one) => one.tensor)));
  const first = rows.find((row) => blamed.has(row.one.tensor)) || rows.find((row) => row.own.some((tensor) => tensor && tensor.histogram && tensor.kind === 'activation')) || rows.find((row) => row.own.some((tensor) => tensor && tensor.histogram)) || rows[0];
  return {
    title: 'Tensors and plan', lead: 'What was decided for each tensor, with its values and the range that the integers cover. Weights are shown as they are stored.',
    node: el('div', {}, el('div', { class: 'tools' }, scale), panel, listing.node), after: () => show(first),
  };
}

function keptFloat(sides) {
  const with_it = sides.filter((side) => side.kept.length);
  if (!with_it.length) return null;
  const ops = (row) => Object.entries(row.ops).sort((a, b) => b[1] - a[1]).map(([name, count]) => `${count} ${name}`).join(', ');
  return {
    title: 'Kept in float', lead: 'Operators that stayed in float, and why.',
    node: each(with_it, (side) => table({
      caption: 'Operators kept in float, by reason', rows: side.kept, free: true,
      columns: [
        { label: 'reason', prose: true, value: (row) => row.reason },
        { label: 'count', numeric: true, value: (row) => row.nodes.length },
        { label: 'op types', value: ops },
        { label: 'operators', wide: true, value: (row) => row.nodes[0], show: (row) => names(row.nodes) },
      ],
    }).node),
  };
}

function names(nodes) {
  const link = (name) => el('button', { class: 'link', type: 'button', onclick: () => actions.node(name) }, named(name));
  const listed = (some) => some.flatMap((name, index) => [index ? ', ' : null, link(name)]);
  if (nodes.length <= 3) return listed(nodes);
  const rest = el('details', { ontoggle: () => { if (rest.open && rest.childElementCount < 2) rest.append(el('div', {}, listed(nodes.slice(3)))); } }, el('summary', {}, `${nodes.length - 3} more`));
  return [...listed(nodes.slice(0, 3)), rest];
}

function times(sides) {
  const with_it = sides.filter((side) => side.bench);
  if (!with_it.length) return null;
  const part = (side) => {
    const { bench } = side;
    const heads = bench.models.length > 1 ? bench.models.map((_, index) => ['first', 'second'][index]) : ['model'];
    const row = (label, show) => ({ label, cells: bench.models.map(show) });
    const rows = [
      row('latency, median', (model) => duration(model.latency.median)), row('quartiles', (model) => `${duration(model.latency.low)} … ${duration(model.latency.high)}`),
      row('load time', (model) => duration(model.load_seconds)), row('memory', (model) => bytes(model.memory_bytes)), row('file size', (model) => bytes(model.file_bytes)),
    ];
    const ops = bench.models.some((model) => model.ops.length) ? chart(`Time by op type: ${bench.models.map((model, index) => `${heads[index]}: ${model.ops.slice(0, 5).map((op) => `${op.op_type} ${duration(op.seconds)}`).join(', ')}`).join('; ')}`, timesOption(bench, heads)) : null;
    const unfused = bench.models[bench.models.length - 1].unfused || [];
    return el('div', {},
      el('p', { class: 'muted' }, bench.models.map((model, index) => [index ? '; ' : null, `${heads[index]}: `, named(model.name.split('/').pop())])),
      bench.ratio ? el('p', {}, el('strong', {}, `${bench.ratio.value.toFixed(2)} × as fast`), ` (95 % interval ${bench.ratio.low.toFixed(2)} … ${bench.ratio.high.toFixed(2)}, ${bench.rounds} rounds)`) : null,
      table({ caption: 'Latency, memory and size', rows, free: true, columns: [{ label: 'figure', value: (one) => one.label }, ...heads.map((head, index) => ({ label: head, numeric: true, value: (one) => one.cells[index] }))] }).node,
      ops ? el('h3', { class: 'sub' }, 'Time by op type') : null, ops ? ops.node : null,
      unfused.length ? el('div', {}, el('h3', { class: 'sub' }, 'Quantized parts that did not fuse'), el('p', { class: 'muted' }, 'Float operators fed by DequantizeLinear in the graph that runs: they pay for conversions on top.'), table({
        caption: 'Operators that did not fuse', rows: unfused, onselect: (one) => actions.node(one.node),
        columns: [
          { label: 'operator', wide: true, value: (one) => one.node, show: (one) => named(one.node) }, { label: 'op type', value: (one) => one.op_type },
          { label: 'time', numeric: true, value: (one) => one.seconds, show: (one) => duration(one.seconds) }, { label: 'conversions', numeric: true, value: (one) => one.conversion_seconds, show: (one) => duration(one.conversion_seconds) },
        ],
      }).node) : null);
  };
  return { title: 'Speed', lead: 'All models took turns on the same samples.', node: each(with_it, part) };
}

function reproduce(sides) {
  return {
    title: 'Reproduce', lead: 'Settings, versions and fingerprints: what it takes to make the same again.',
    node: each(sides, (side) => el('div', {}, side.settings.map((group) => el('div', {}, el('h3', { class: 'sub' }, group.title), facts(group.rows.map(([name, value]) => [name, el('code', {}, value)])))),
      side.notes.length ? el('div', {}, el('h3', { class: 'sub' }, 'Notes'), el('ul', {}, side.notes.map((note) => el('li', {}, note)))) : null)),
  };
}
