// The graph on a canvas: pan, zoom, select; what is out of sight is not drawn. A strip beside it shows the whole.

const BOX = { width: 132, height: 40 };
const STATES = { quantized: ['quantized', '#4c86d9'], float: ['kept in float', '#e09f3e'], fused: ['fused', '#9aa3b2'], other: ['other', '#c9ced8'], end: ['input or output', '#7d8798'] };
const ERRORS = [[10, 'below 10 dB', '#b2182b'], [20, '10 to 20 dB', '#ef8a62'], [30, '20 to 30 dB', '#fddbc7'], [40, '30 to 40 dB', '#d1e5f0'], [50, '40 to 50 dB', '#67a9cf'], [Infinity, '50 dB and more', '#2166ac']];
const TIMES = [[0.001, 'below 0.1 %', '#fff7ec'], [0.01, '0.1 to 1 %', '#fdd49e'], [0.03, '1 to 3 %', '#fc8d59'], [0.1, '3 to 10 %', '#d7301f'], [Infinity, '10 % and more', '#7f0000']];
const NOTHING = ['not measured', '#c9ced8'];

function dark(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b < 140;
}

function modes(graph) {
  const total = graph.us;
  const graded = (steps, value) => (known(value) ? steps.find(([bound]) => value < bound) || steps[steps.length - 1] : null);
  const found = {};
  const has = (key) => graph.nodes.some((node) => known(node[key]));
  const entries = (steps) => [...steps.map(([, text, colour]) => [text, colour]), NOTHING];
  if (has('local')) found.local = { label: 'error of the operator alone', colour: (node) => (graded(ERRORS, node.local) || [0, ...NOTHING])[2], legend: entries(ERRORS) };
  if (has('total')) found.total = { label: 'error of the model up to here', colour: (node) => (graded(ERRORS, node.total) || [0, ...NOTHING])[2], legend: entries(ERRORS) };
  if (has('us')) found.time = { label: 'time', colour: (node) => (graded(TIMES, known(node.us) ? node.us / total : null) || [0, ...NOTHING])[2], legend: entries(TIMES) };
  found.state = { label: 'what became of it', colour: (node) => STATES[node.state][1], legend: Object.values(STATES) };
  return { found, total };
}

function drawing(graph, { onselect, describe }) {
  const { found, total } = modes(graph);
  const view = el('div', { class: 'view', tabindex: '0', role: 'application', 'aria-roledescription': 'graph', 'aria-label': `Graph of ${graph.nodes.length} operators. Up and down follow the network, left and right go to neighbours, plus and minus zoom, 0 shows all. The table below lists the same operators.` }, el('canvas'));
  const overview = el('div', { class: 'overview', 'aria-hidden': 'true' }, el('canvas'));
  const legend = el('ul', { class: 'legend', 'aria-label': 'Colours' });
  const canvas = view.firstChild;
  const whole = overview.firstChild;
  const state = { x: 0, y: 0, scale: 1, mode: Object.keys(found)[0], selected: -1, queued: false, ready: false };
  const before = graph.nodes.map(() => []);
  const after = graph.nodes.map(() => []);
  for (const [source, target] of graph.edges) { before[target].push(source); after[source].push(target); }
  const xs = graph.nodes.map((node) => node.x);
  const ys = graph.nodes.map((node) => node.y);
  const bounds = { left: Math.min(...xs) - BOX.width, right: Math.max(...xs) + BOX.width, top: Math.min(...ys) - BOX.height, bottom: Math.max(...ys) + BOX.height };

  function sized(target) {
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = target;
    if (target.width !== Math.round(width * ratio) || target.height !== Math.round(height * ratio)) {
      target.width = Math.round(width * ratio);
      target.height = Math.round(height * ratio);
    }
    const context = target.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return { context, width, height };
  }

  function queue() {
    if (state.queued) return;
    state.queued = true;
    requestAnimationFrame(() => { state.queued = false; paint(); });
  }

  function line(context, edge) {
    const [source, target, ...bends] = edge;
    const points = [[graph.nodes[source].x, graph.nodes[source].y + BOX.height / 2]];
    for (let i = 0; i < bends.length; i += 2) points.push([bends[i], bends[i + 1]]);
    points.push([graph.nodes[target].x, graph.nodes[target].y - BOX.height / 2]);
    context.moveTo(points[0][0], points[0][1]);
    for (let i = 1; i < points.length; i += 1) {
      const [px, py] = points[i - 1];
      const [x, y] = points[i];
      const middle = (py + y) / 2;
      context.bezierCurveTo(px, middle, x, middle, x, y);
    }
  }

  function box(context, node, index, c) {
    const colour = found[state.mode].colour(node);
    const [left, top] = [node.x - BOX.width / 2, node.y - BOX.height / 2];
    context.fillStyle = colour;
    context.strokeStyle = index === state.selected ? c.text : c.line;
    context.lineWidth = index === state.selected ? 3.5 : 1;
    context.beginPath();
    context.roundRect(left, top, BOX.width, BOX.height, node.state === 'end' ? 20 : 6);
    context.fill();
    context.stroke();
    if (state.scale < 0.32) return;
    context.fillStyle = dark(colour) ? '#fff' : '#15181e';
    context.font = `600 12.5px ${state.font}`;
    context.fillText(short(node.op, 17), node.x, node.y - (state.scale > 0.6 ? 7 : 0));
    if (state.scale <= 0.6) return;
    context.font = `10px ${state.font}`;
    context.fillText(tail(node.name, 21), node.x, node.y + 9);
  }

  const tail = (name, most) => { const text = clean(name); return text.length > most ? `…${text.slice(1 - most)}` : text; };

  function paint() {
    const { context, width, height } = sized(canvas);
    if (!width || !height) return;
    const c = colours();
    state.font = font();
    context.translate(state.x, state.y);
    context.scale(state.scale, state.scale);
    const [top, bottom] = [-state.y / state.scale - 80, (height - state.y) / state.scale + 80];
    const [left, right] = [-state.x / state.scale - 160, (width - state.x) / state.scale + 160];
    context.beginPath();
    for (const edge of graph.edges) {
      if (graph.nodes[edge[1]].y < top || graph.nodes[edge[0]].y > bottom) continue;
      line(context, edge);
    }
    context.strokeStyle = c.muted;
    context.globalAlpha = 0.55;
    context.lineWidth = Math.max(1.1, 0.5 / state.scale);
    context.stroke();
    context.globalAlpha = 1;
    if (state.selected >= 0) {
      context.beginPath();
      for (const edge of graph.edges) if (edge[0] === state.selected || edge[1] === state.selected) line(context, edge);
      context.strokeStyle = c.accent;
      context.lineWidth = Math.max(2.4, 1 / state.scale);
      context.stroke();
    }
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    graph.nodes.forEach((node, index) => {
      if (node.y >= top && node.y <= bottom && node.x >= left && node.x <= right) box(context, node, index, c);
    });
    paintOverview(c, width, height);
  }

  function overviewScale() {
    const [width, height] = [whole.clientWidth, whole.clientHeight];
    return { sx: (width - 8) / (bounds.right - bounds.left), sy: (height - 8) / (bounds.bottom - bounds.top) };
  }

  function paintOverview(c, width, height) {
    const { context } = sized(whole);
    const { sx, sy } = overviewScale();
    for (const node of graph.nodes) {
      context.fillStyle = found[state.mode].colour(node);
      const [w, h] = [Math.max(3, BOX.width * sx), Math.max(1.6, Math.min(BOX.height * sy, 10))];
      context.fillRect(4 + (node.x - bounds.left) * sx - w / 2, 4 + (node.y - bounds.top) * sy - h / 2, w, h);
    }
    context.strokeStyle = c.accent;
    context.lineWidth = 2;
    const left = 4 + Math.max(0, (-state.x / state.scale - bounds.left) * sx);
    const top = 4 + Math.max(0, (-state.y / state.scale - bounds.top) * sy);
    const right = Math.min(whole.clientWidth - 2, 4 + ((width - state.x) / state.scale - bounds.left) * sx);
    const bottom = Math.min(whole.clientHeight - 2, 4 + ((height - state.y) / state.scale - bounds.top) * sy);
    context.strokeRect(left, top, Math.max(4, right - left), Math.max(4, bottom - top));
  }

  function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    const scale = Math.min(3, Math.max(least(), state.scale * factor));
    state.x = x - ((x - state.x) * scale) / state.scale;
    state.y = y - ((y - state.y) * scale) / state.scale;
    state.scale = scale;
    queue();
  }

  const least = () => Math.min(0.9, fitting());
  const fitting = () => Math.min(canvas.clientWidth / (bounds.right - bounds.left), canvas.clientHeight / (bounds.bottom - bounds.top));

  function centre(x, y, scale = state.scale) {
    state.scale = scale;
    state.x = canvas.clientWidth / 2 - x * scale;
    state.y = canvas.clientHeight / 2 - y * scale;
    queue();
  }

  function fit() {
    centre((bounds.left + bounds.right) / 2, (bounds.top + bounds.bottom) / 2, Math.min(1.4, fitting()));
  }

  function start() {
    if (state.ready || !canvas.clientWidth) return;
    state.ready = true;
    const wide = canvas.clientWidth / (bounds.right - bounds.left);
    const scale = Math.max(fitting(), Math.min(0.8, Math.max(0.45, wide)));
    const node = state.selected >= 0 ? graph.nodes[state.selected] : null;
    if (node) { centre(node.x, node.y, Math.max(scale, 0.8)); return; }
    centre(graph.nodes[0].x, bounds.top + canvas.clientHeight / 2 / scale, Math.min(scale, 1.2));
  }

  function select(index, { follow = false, quiet = false } = {}) {
    state.selected = index;
    const node = graph.nodes[index];
    if (node && follow) centre(node.x, node.y, Math.max(state.scale, 0.8));
    if (node && !quiet) { onselect(node); say(describe(node)); }
    queue();
  }

  function at(clientX, clientY) {
    const frame = canvas.getBoundingClientRect();
    const x = (clientX - frame.left - state.x) / state.scale;
    const y = (clientY - frame.top - state.y) / state.scale;
    return graph.nodes.findIndex((node) => Math.abs(node.x - x) <= BOX.width / 2 && Math.abs(node.y - y) <= BOX.height / 2);
  }

  const pointers = new Map();
  let moved = 0;
  view.addEventListener('pointerdown', (event) => {
    pointers.set(event.pointerId, event);
    moved = 0;
    view.setPointerCapture(event.pointerId);
    view.classList.add('held');
  });
  view.addEventListener('pointermove', (event) => {
    const last = pointers.get(event.pointerId);
    if (!last) return;
    moved += Math.abs(event.clientX - last.clientX) + Math.abs(event.clientY - last.clientY);
    if (pointers.size === 2) {
      const other = [...pointers.values()].find((one) => one.pointerId !== event.pointerId);
      const reach = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY) || 1;
      const frame = canvas.getBoundingClientRect();
      zoom(reach(event) / reach(last), (event.clientX + other.clientX) / 2 - frame.left, (event.clientY + other.clientY) / 2 - frame.top);
    } else {
      state.x += event.clientX - last.clientX;
      state.y += event.clientY - last.clientY;
      queue();
    }
    pointers.set(event.pointerId, event);
  });
  const release = (event) => {
    if (pointers.delete(event.pointerId) && event.type === 'pointerup' && moved < 5) {
      const index = at(event.clientX, event.clientY);
      if (index >= 0) select(index);
    }
    if (!pointers.size) view.classList.remove('held');
  };
  view.addEventListener('pointerup', release);
  view.addEventListener('pointercancel', release);
  view.addEventListener('wheel', (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== view) return;
    event.preventDefault();
    const frame = canvas.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), event.clientX - frame.left, event.clientY - frame.top);
  }, { passive: false });
  view.addEventListener('dblclick', (event) => {
    const frame = canvas.getBoundingClientRect();
    zoom(1.6, event.clientX - frame.left, event.clientY - frame.top);
  });

  function beside(step) {
    const { y, x } = graph.nodes[state.selected];
    const row = graph.nodes.map((node, index) => [node, index]).filter(([node]) => node.y === y).sort(([a], [b]) => a.x - b.x);
    const next = row.findIndex(([node]) => node.x === x) + step;
    return next >= 0 && next < row.length ? row[next][1] : -1;
  }

  view.addEventListener('keydown', (event) => {
    const keys = { '+': () => zoom(1.25), '=': () => zoom(1.25), '-': () => zoom(0.8), 0: fit };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (keys[event.key]) keys[event.key]();
    else if (event.key.startsWith('Arrow')) {
      if (state.selected < 0) { select(0, { follow: true }); event.preventDefault(); return; }
      const next = { ArrowDown: () => after[state.selected][0], ArrowUp: () => before[state.selected][0], ArrowLeft: () => beside(-1), ArrowRight: () => beside(1) }[event.key]();
      if (known(next) && next >= 0) select(next, { follow: true });
    } else return;
    event.preventDefault();
  });

  function jump(event) {
    if (event.type === 'pointermove' && !event.buttons) return;
    const frame = whole.getBoundingClientRect();
    const { sx, sy } = overviewScale();
    centre(bounds.left + (event.clientX - frame.left - 4) / sx, bounds.top + (event.clientY - frame.top - 4) / sy);
  }
  overview.addEventListener('pointerdown', jump);
  overview.addEventListener('pointermove', jump);

  function recolour(mode) {
    state.mode = mode;
    legend.replaceChildren(...found[mode].legend.map(([text, colour]) => {
      const patch = el('i');
      patch.style.background = colour;
      return el('li', {}, patch, text);
    }));
    queue();
  }
  recolour(state.mode);
  new ResizeObserver(() => { start(); queue(); }).observe(view);
  const index = new Map(graph.nodes.map((node, place) => [node.name, place]));
  return {
    stage: el('div', { class: 'stage' }, view, overview), legend, total, modes: found, fit, zoom, recolour, paint,
    select: (name) => { if (index.has(name)) select(index.get(name), { follow: true }); return index.has(name); },
    get mode() { return state.mode; },
    get scale() { return state.scale; },
  };
}
