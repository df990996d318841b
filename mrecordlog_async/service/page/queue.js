// One queue: its records as text, JSON or hex, its consumers, and an append.
const NEWEST = 20, LINES = 500, SHOWN_BYTES = 4096;
let shown = [], following = null, attempts = 0;

function selectQueue(name) {
  $("queue").value = name;
  $("start").value = "";
  showCommands();
  showTable();
  readNewest();
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
  const [found] = await Promise.all([read({ limit: NEWEST, ...(start ? { start } : {}) }), showConsumers()]);
  return found;
});
const readNewest = () => attempt(async () => {
  const [response] = await Promise.all([call(queuePath("")), showConsumers()]);
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
  $("records").textContent = shown.map((record) => line(record, view)).join("\n");
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
$("queue").addEventListener("input", () => { showCommands(); $("consumers").replaceChildren(); });

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

// Consumers. Those of the queue that was read last are kept up to date.
const CONSUMERS_MILLISECONDS = 5000;
let consumersOf = "", consumersAt = 0;
async function refreshConsumers(now) {
  if ($("consumers").firstChild && $("queue").value === consumersOf && now - consumersAt > CONSUMERS_MILLISECONDS) await showConsumers();
}
async function showConsumers() {
  const name = $("queue").value;
  if (name !== consumersOf) $("consumers").replaceChildren();
  consumersOf = name;
  consumersAt = performance.now();
  const response = await call(queuePath("/consumers?limit=200"));
  const consumers = response.ok ? parse(await response.text()).consumers : [];
  if ($("queue").value !== name) return;  // another queue was chosen meanwhile
  if (!consumers.length) { $("consumers").replaceChildren(); return; }
  const table = document.createElement("table"), head = table.createTHead().insertRow();
  for (const title of ["consumer", "position", "records waiting", "bytes waiting", "oldest"])
    head.append(Object.assign(document.createElement("th"), { textContent: title, scope: "col" }));
  for (const one of consumers) {
    const row = table.insertRow();
    const oldest = one.oldest_seconds ?? null;
    for (const text of [one.consumer, one.position, one.records, bytes(one.bytes), oldest === null ? "–" : age(oldest)])
      row.insertCell().textContent = text;
  }
  $("consumers").replaceChildren(table);
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
