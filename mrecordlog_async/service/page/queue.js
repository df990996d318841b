// One queue: its options, its records as text, JSON or hex, its consumers, and an append. The address names it: #queue=orders.
const NEWEST = 20, LINES = 500, SHOWN_BYTES = 4096;
let shown = [], following = null, attempts = 0, addressSeen = false;

function selectQueue(name) {
  if (location.hash !== queueAddress(name)) history.pushState(null, "", queueAddress(name));
  openQueue(name);
}
// Shows what the address names, once the log can be read, and whenever the address changes.
function openAddress() {
  addressSeen = true;
  const name = new URLSearchParams(location.hash.slice(1)).get("queue");
  if (name !== null) openQueue(name); else showTitle();
}
window.addEventListener("hashchange", openAddress);
function openQueue(name) {
  $("queue").value = name;
  $("start").value = "";
  showCommands();
  showTable();
  readNewest();
  $("back").hidden = false;
  $("queue-panel").className = "open";  // as high as the window: it can be scrolled to the top
  $("queue-panel").scrollIntoView({ block: "start" });
  $("queue-title").focus({ preventScroll: true });
}
$("back").addEventListener("click", () => {
  const row = [...$("queues").children].find((one) => one.getAttribute("aria-selected") === "true") || $("queues").firstElementChild;
  if (row) { row.scrollIntoView({ block: "center" }); row.focus({ preventScroll: true }); }
});
function showTitle() {
  const name = $("queue").value;
  $("queue-title").textContent = name ? `Queue ${shownName(name)}` : "One queue";
  document.title = (name ? shownName(name) + " · " : "") + (serviceName ? serviceName + " · " : "") + "mrecordlog";
}
// A quote that is left would end an argument of the commands below.
const inPath = (name) => encodeURIComponent(name).replaceAll("'", "%27");
const queuePath = (rest) => `v1/queues/${inPath($("queue").value)}${rest}`;

// Records.
async function read(query) {
  const response = await call(queuePath("/records?" + new URLSearchParams({ max_bytes: 1048576, ...query })), { headers: { Accept: "application/x-ndjson" } });
  if (!response.ok) throw new Error(await problem(response));
  const records = (await response.text()).split("\n").filter(Boolean).map(parse);
  return Object.assign(records, { next: BigInt(response.headers.get("X-Next-Position")) });
}
async function attempt(action) {
  const mine = ++attempts;  // what an earlier one finds may come later, and be of another queue
  stopFollowing();
  try {
    const found = await action();
    if (mine === attempts) showRecords(found);
  } catch (error) {
    if (mine !== attempts) return;
    showRecords([]);
    $("read-note").textContent = error instanceof TypeError ? "the service cannot be reached" : error.message;
  }
}
const readFrom = () => attempt(async () => {
  const start = $("start").value.trim();
  const [found] = await Promise.all([read({ limit: NEWEST, ...(start ? { start } : {}) }), showQueue()]);
  return found;
});
const readNewest = () => attempt(async () => {
  const [response] = await Promise.all([call(queuePath("")), showQueue()]);
  if (!response.ok) throw new Error(await problem(response));
  const summary = parse(await response.text());
  const first = BigInt(summary.first_position), next = BigInt(summary.next_position);
  for (let span = BigInt(NEWEST); ; span *= 8n) {  // positions may have gaps
    const start = next - span > first ? next - span : first;
    let found = [];
    for (let at = start, more; at < next; at = more.next) {  // a response ends after 1 MiB
      more = await read({ limit: 100 * NEWEST, start: at });
      if (!more.length) break;
      found = [...found, ...more].slice(-NEWEST);
    }
    if (found.length >= NEWEST || start === first) return found;
  }
});
function showRecords(records) {
  shown = records;
  $("read-note").textContent = records.length ? `${count(records.length, "record")}` : "no records there";
  render();
}
function render() {
  const view = $("view").value;
  const texts = shown.map((record) => line(record, view));
  $("records").replaceChildren(...texts.map((text, index) => Object.assign(document.createElement("div"),
    { className: "record", textContent: index < texts.length - 1 ? text + "\n" : text })));
}
function line(record, view) {
  const raw = atob(record.payload), cut = raw.length > SHOWN_BYTES ? `… (${bytes(raw.length)})` : "";
  const octets = Uint8Array.from(raw.slice(0, SHOWN_BYTES), (character) => character.charCodeAt(0));
  const when = record.time ? `  ${record.time}` : "";
  if (view === "hex") return `${record.position}${when}\n${hex(octets)}${cut}`;
  const text = new TextDecoder().decode(octets) + cut;
  if (view === "json") try { return `${record.position}${when}\n${JSON.stringify(JSON.parse(text), null, 2)}`; } catch { /* not JSON */ }
  return `${record.position}${when}  ${text}`;
}
function hex(octets) {
  const rows = [];
  for (let at = 0; at < octets.length; at += 16) {
    const part = [...octets.slice(at, at + 16)];
    const digits = part.map((octet) => octet.toString(16).padStart(2, "0")).join(" ");
    const letters = part.map((octet) => octet > 31 && octet < 127 ? String.fromCharCode(octet) : ".").join("");
    rows.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${letters}`);
  }
  return rows.join("\n");
}
$("view").addEventListener("change", render);
$("queue-form").addEventListener("submit", (event) => { event.preventDefault(); readFrom(); });
$("read-newest").addEventListener("click", readNewest);
$("queue").addEventListener("input", () => { showCommands(); showConsumersOf([]); $("queue-facts").replaceChildren(); });

// New records as they are stored.
$("follow").addEventListener("click", () => following ? stopFollowing() : startFollowing());
function stopFollowing() {
  if (following) following.abort();
  following = null;
  $("follow").setAttribute("aria-pressed", "false");
}
async function startFollowing() {
  const mine = following = new AbortController(), start = $("start").value.trim() || "next";
  $("follow").setAttribute("aria-pressed", "true");
  attempts++;
  showRecords([]);
  $("read-note").textContent = "waiting for records";
  try {
    for await (const { event, data } of events(queuePath("/tail?" + new URLSearchParams({ start })), { signal: mine.signal })) {
      if (event === "end") { $("read-note").textContent = `the queue's records ended: ${data}`; break; }
      push(shown, parse(data), LINES);
      $("read-note").textContent = `following; ${count(shown.length, "record")}`;
      render();
      $("records").scrollTop = $("records").scrollHeight;
    }
  } catch (error) {
    if (error.name !== "AbortError") $("read-note").textContent = error instanceof TypeError ? "the connection was lost" : error.message;
  }
  if (following === mine) stopFollowing();
}

// Options and consumers of the queue that was read last are kept up to date.
const QUEUE_MILLISECONDS = 5000;
let consumersOf = "", shownAt = 0;
async function refreshQueue(now) {
  if ($("queue-facts").firstChild && $("queue").value === consumersOf && now - shownAt > QUEUE_MILLISECONDS) await showQueue();
}
const showQueue = () => Promise.all([showConsumers(), showOptions()]);
async function showConsumers() {
  const name = $("queue").value;
  if (name !== consumersOf) { showConsumersOf([]); $("queue-facts").replaceChildren(); }
  consumersOf = name;
  shownAt = performance.now();
  showTitle();
  const response = await call(queuePath("/consumers?limit=200"));
  const consumers = response.ok ? parse(await response.text()).consumers : [];
  if ($("queue").value === name) showConsumersOf(consumers);  // otherwise another queue was chosen meanwhile
}
function showConsumersOf(consumers) {
  $("consumers").hidden = !consumers.length;
  showConsumerTable($("consumers"), consumers, OF_ONE_QUEUE);
}
async function showOptions() {
  const name = $("queue").value;
  const [summary, options] = await Promise.all(["", "/options"].map(async (rest) => {
    const response = await call(queuePath(rest));
    return response.ok ? parse(await response.text()) : null;
  }));
  if ($("queue").value !== name) return;
  $("queue-facts").replaceChildren(...(summary && options ? facts(summary, options) : []).map(([text, kind]) =>
    Object.assign(document.createElement("span"), { textContent: text, className: kind || "" })));
}
const HAVE_SENTENCES = ["queue", "sealed", "keep", "when_full", "max_bytes", "max_records", "max_age", "keep_at_least"];
// Of a queue with limits: how much of each is used, because that is why an append gets 429.
function facts(summary, options) {
  const found = [[`${count(summary.records, "record")}, ${bytes(summary.bytes)}, positions ${summary.first_position} to ${summary.next_position}`]];
  if (summary.sealed) found.push(["sealed: it accepts no more records", "problem"]);
  found.push([options.keep === "until_acknowledged" ? "keeps until acknowledged" : "keeps until truncated"]);
  const full = options.when_full === "refuse" ? "appends beyond that are refused" : "then drops the oldest";
  for (const [limit, used, text] of [[options.max_bytes, summary.bytes, bytes], [options.max_records, summary.records, String]]) {
    if (limit === null) continue;
    const part = Number(used) / Number(limit);
    found.push([`at most ${text(limit)}${text === String ? " records" : ""}, ${Math.round(part * 100)} % used: ${full}`, part >= 0.95 && options.when_full === "refuse" ? "problem" : ""]);
  }
  if ((options.keep_at_least ?? null) !== null) found.push([`keeps acknowledged records for ${age(options.keep_at_least)}`]);
  if (options.max_age !== null) found.push([`removes records older than ${age(options.max_age)}`]);
  // An option without a sentence of its own is shown by its name.
  const set = Object.entries(options).filter(([, value]) => value !== null);
  for (const [name, value] of set.filter(([name]) => !HAVE_SENTENCES.includes(name)))
    found.push([`${name.replaceAll("_", " ")}: ${name.endsWith("_bytes") ? bytes(value) : value}`]);
  if (!set.some(([name]) => name.startsWith("max_"))) found.push(["no limits of its own"]);
  return found;
}

// Append, and commands to copy.
$("append-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const create = $("append-create").checked ? "?create=1" : "", body = $("append-payload").value;
  try {
    const response = await call(queuePath("/records" + create), { method: "POST", body, headers: { "Content-Type": "application/octet-stream" } });
    $("append-result").textContent = response.ok ? `stored at position ${parse(await response.text()).position}` : await problem(response);
  } catch (error) { $("append-result").textContent = "the service cannot be reached: it is unknown whether the record was stored"; }
});
function showCommands() {
  const url = location.origin + base, name = $("queue").value || "QUEUE", quoted = `'${name.replaceAll("'", "'\\''")}'`;
  const address = `'${url}v1/queues/${inPath(name)}`;
  $("commands").textContent = [
    `mrecordlog cat ${url} ${quoted} --follow`,
    `mrecordlog truncate ${url} ${quoted} POSITION`,
    `curl -X PUT ${address}'`,
    `curl --data-binary @FILE ${address}/records'`,
    `curl --json '{"position": POSITION}' ${address}/truncate'`,
    `curl -X DELETE ${address}'`,
  ].join("\n");
}
$("empty-commands").textContent = [
  `curl -X PUT ${location.origin}${base}v1/queues/orders`,
  `curl --data-binary hello ${location.origin}${base}v1/queues/orders/records`,
].join("\n");
showCommands();
