// The table of queues: one page of the list, sorted by any column. A row keeps its element, so focus and pointer stay.
const PAGE = 200, RESORT_SECONDS = 5, WINDOW_SECONDS = 10;
const COLUMNS = [
  { key: "queue", title: "queue", text: (queue) => shownName(queue.queue) },
  { key: "records", title: "records", text: (queue) => queue.records, order: "records" },
  { key: "bytes", title: "bytes", text: (queue) => bytes(queue.bytes), order: "bytes" },
  { key: "first_position", title: "first", text: (queue) => queue.first_position },
  { key: "next_position", title: "next", text: (queue) => queue.next_position },
  { key: "in", title: "in/s", text: (queue) => queue.in === null ? "–" : rate(queue.in) },
  { key: "out", title: "out/s", text: (queue) => queue.out === null ? "–" : rate(queue.out) },
  { key: "age", title: "oldest", text: (queue) => queue.age === null ? "–" : age(queue.age), order: "age" },
  { key: "segment", title: "keeps from segment", text: (queue) => queue.first_segment === null ? "–" : queue.first_segment, order: "segment" },
];
let sortKey = "queue", descending = false, sortedAt = 0, order = [];
let etag = "", listed = "", queues = [], total = 0, pages = [null], nextAfter = null;
const past = new Map(), rowsById = new Map();

for (const column of COLUMNS) {
  const cell = document.createElement("th"), button = document.createElement("button");
  cell.id = "column-" + column.key;
  cell.scope = "col";
  button.textContent = column.title;
  button.addEventListener("click", () => sortBy(column.key));
  cell.append(button);
  $("columns").append(cell);
  $("sort").append(new Option(column.title, column.key));
}
$("sort").addEventListener("change", () => sortBy($("sort").value));
$("columns").append(Object.assign(document.createElement("th"), { textContent: "last minute", scope: "col" }));

function sortBy(key) {
  descending = sortKey === key ? !descending : key !== "queue" && key !== "segment";
  sortKey = $("sort").value = key;
  pages = [null];
  sortedAt = 0;
  showTable();
}
// With more queues than a page, the service finds the largest; it has no order for rates, and none the other way round.
function listPath() {
  const column = COLUMNS.find((one) => one.key === sortKey), query = new URLSearchParams({ limit: PAGE });
  const many = total > PAGE;
  if (many && $("filter").value) query.set("prefix", $("filter").value);
  if (many && column.order) query.set("order", column.order);
  else if (pages.length > 1) query.set("after", pages[pages.length - 1]);
  return "v1/queues?" + query;
}
async function showQueues(now, count) {
  total = count;
  $("empty").hidden = count > 0;
  const path = listPath();
  if (path !== listed) etag = "";
  const response = await call(path, { headers: etag ? { "If-None-Match": etag } : {} });
  if (response.status !== 304) {
    if (!response.ok) return;
    etag = response.headers.get("ETag") || "";
    listed = path;
    const page = parse(await response.text());
    queues = page.queues;
    nextAfter = page.next;
  }
  remember(now);
  showTable();
}
// Rates are means of ten seconds: they move less than those of one.
function remember(now) {
  const kept = new Set();
  for (const queue of queues) {
    const seen = past.get(queue.id) || { marks: [], rates: [] }, mark = { now, next: Number(queue.next_position), first: Number(queue.first_position) };
    const last = seen.marks[seen.marks.length - 1], oldest = seen.marks[0];
    const seconds = oldest ? (now - oldest.now) / 1000 : 0;
    queue.in = seconds > 0 ? (mark.next - oldest.next) / seconds : null;
    queue.out = seconds > 0 ? (mark.first - oldest.first) / seconds : null;
    queue.age = queue.oldest_time ? Math.max(Date.now() / 1000 - Date.parse(queue.oldest_time) / 1000, 0) : null;
    queue.segment = queue.first_segment === null ? Infinity : queue.first_segment;
    push(seen.rates, last ? (mark.next - last.next) / ((now - last.now) / 1000 || 1) : 0, 60);
    push(seen.marks, mark, WINDOW_SECONDS + 1);
    queue.rates = seen.rates;
    past.set(queue.id, seen);
    kept.add(queue.id);
  }
  for (const id of past.keys()) if (!kept.has(id)) { past.delete(id); rowsById.delete(id); }
}
function compare(a, b) {
  const [x, y] = [a[sortKey], b[sortKey]];
  const found = typeof x === "string" && typeof y === "string" && sortKey === "queue" ? (x < y ? -1 : x > y ? 1 : 0)
    : Number(x ?? -1) - Number(y ?? -1);
  return (descending ? -found : found) || (a.queue < b.queue ? -1 : 1);
}
// Rows change places at most every five seconds, and never under the pointer or the focus.
function mayResort() {
  const still = !$("queues").matches(":hover") && !$("queues").contains(document.activeElement);
  return sortedAt === 0 || (still && performance.now() - sortedAt > RESORT_SECONDS * 1000);
}
function showTable() {
  const wanted = $("filter").value;
  const found = new Map(queues.filter((queue) => queue.queue.includes(wanted)).map((queue) => [queue.id, queue]));
  if (mayResort()) {
    order = [...found.values()].sort(compare).map((queue) => queue.id);
    sortedAt = performance.now();
  }
  const known = new Set(order), newcomers = [...found.keys()].filter((id) => !known.has(id));
  order = [...order.filter((id) => found.has(id)), ...newcomers];
  for (const column of COLUMNS)
    $("column-" + column.key).setAttribute("aria-sort", column.key !== sortKey ? "none" : descending ? "descending" : "ascending");
  const rows = order.map((id) => showRow(found.get(id)));
  const shown = $("queues").children;
  if (rows.length !== shown.length || rows.some((row, index) => shown[index] !== row)) $("queues").replaceChildren(...rows);
  moveTab(rows.find((row) => row.tabIndex === 0) || rows.find((row) => row.getAttribute("aria-selected") === "true") || rows[0]);
  showPaging(rows.length);
}
// One row is a stop of the Tab key, and the arrow keys move it: two hundred rows are no two hundred stops.
function moveTab(to) {
  for (const row of $("queues").children) row.tabIndex = row === to ? 0 : -1;
}
function showPaging(shown) {
  const column = COLUMNS.find((one) => one.key === sortKey), many = total > PAGE;
  $("queue-count").textContent = !many ? `(${shown})` : column.order ? `(${total}; the first ${shown} by ${column.title}, at most 10 s old)`
    : `(${total}; ${shown} on this page${sortKey === "queue" && !descending ? "" : ", and only they are sorted"})`;
  $("filter-form").firstElementChild.textContent = many ? "Name begins with" : "Name contains";
  $("next").hidden = !many || Boolean(column.order) || nextAfter === null;
  $("previous").hidden = pages.length < 2;
}
$("next").addEventListener("click", () => { pages.push(nextAfter); sortedAt = 0; });
$("previous").addEventListener("click", () => { pages.pop(); sortedAt = 0; });
$("filter").addEventListener("input", () => { pages = [null]; sortedAt = 0; showTable(); });
$("filter-form").addEventListener("submit", (event) => event.preventDefault());

function showRow(queue) {
  let row = rowsById.get(queue.id);
  if (!row) {
    row = newRow(queue.queue);
    rowsById.set(queue.id, row);
  }
  COLUMNS.forEach((column, index) => {
    const text = String(column.text(queue));
    if (row.cells[index].textContent !== text) row.cells[index].textContent = text;
  });
  row.setAttribute("aria-selected", String(queue.queue === $("queue").value));
  draw(row.cells[COLUMNS.length].firstChild, queue.rates, 60, 20);
  return row;
}
function newRow(name) {
  const row = document.createElement("tr");
  for (const column of COLUMNS) row.insertCell().dataset.label = column.title;
  row.cells[0].title = name;
  row.cells[0].append(queueLink(name));
  const last = row.insertCell();
  last.dataset.label = "last minute";
  last.append(svg("svg", { viewBox: "0 0 60 20", preserveAspectRatio: "none", "aria-hidden": "true" }));
  row.tabIndex = -1;
  row.addEventListener("focus", () => moveTab(row));
  row.addEventListener("click", (event) => { if (!opensElsewhere(event)) { event.preventDefault(); selectQueue(name); } });
  row.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); selectQueue(name); }
    const rows = $("queues");
    const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling, Home: rows.firstElementChild, End: rows.lastElementChild }[event.key];
    if (next) { event.preventDefault(); next.focus(); }
  });
  return row;
}
// A link to a queue, so that it can be copied or opened in another tab. The row or the list around it has the focus.
const queueAddress = (name) => "#" + new URLSearchParams({ queue: name });
const queueLink = (name) => Object.assign(document.createElement("a"), { href: queueAddress(name), textContent: shownName(name), tabIndex: -1 });
const opensElsewhere = (event) => event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0;
