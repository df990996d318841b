// Consumers: of all queues, and of the one that is shown. What waits for each is in records, bytes and time.
const CONSUMER_ROWS = 200, CONSUMER_QUEUES = 1000, CONSUMERS_MILLISECONDS = 5000;
const OF_ONE_QUEUE = [
  { title: "consumer", text: (one) => shownName(one.consumer) },
  { title: "position", text: (one) => one.position },
  { title: "records waiting", text: (one) => one.records, by: (one) => Number(one.records) },
  { title: "bytes waiting", text: (one) => bytes(one.bytes), by: (one) => Number(one.bytes) },
  { title: "oldest", text: (one) => (one.oldest_seconds ?? null) === null ? "–" : age(one.oldest_seconds), by: (one) => one.oldest_seconds ?? -1 },
  { title: "holder seen", text: (one) => (one.idle_seconds ?? null) === null ? "–" : one.idle_seconds < 1 ? "now" : `${age(one.idle_seconds)} ago`, by: (one) => one.idle_seconds ?? -1 },
  { title: "skipped", text: (one) => one.skipped, by: (one) => one.skipped },
];
const OF_ALL = [OF_ONE_QUEUE[0], { title: "queue", queue: true, text: (one) => shownName(one.queue) }, ...OF_ONE_QUEUE.slice(2)];
const LATEST = "bytes waiting";
let allConsumers = [], consumersAt = -Infinity, consumerSort = LATEST;

// Draws a table that stands in *box*; the one of all queues can be sorted. A link or button in it keeps the focus.
function showConsumerTable(box, consumers, wantedColumns) {
  const columns = wantedColumns.filter((column) => column.title !== "skipped" || consumers.some((one) => one.skipped));
  const wanted = wantedColumns === OF_ALL ? consumerSort : LATEST, by = wantedColumns.find((column) => column.title === wanted).by;
  const table = document.createElement("table"), head = table.createTHead().insertRow(), body = table.createTBody();
  for (const column of columns) {
    const cell = Object.assign(document.createElement("th"), { scope: "col" });
    if (wantedColumns === OF_ALL && column.by) {
      const button = Object.assign(document.createElement("button"), { textContent: column.title });
      button.addEventListener("click", () => { consumerSort = column.title; showAllConsumers(); });
      cell.append(button);
      cell.setAttribute("aria-sort", column.title === wanted ? "descending" : "none");
    } else cell.textContent = column.title;
    head.append(cell);
  }
  const sorted = [...consumers].sort((a, b) => by(b) - by(a) || (a.consumer < b.consumer ? -1 : 1));
  for (const one of sorted.slice(0, CONSUMER_ROWS)) {
    const row = body.insertRow();
    for (const column of columns) {
      const cell = row.insertCell();
      if (column.queue) {
        const link = queueLink(one.queue);
        link.tabIndex = 0;
        link.addEventListener("click", (event) => { if (!opensElsewhere(event)) { event.preventDefault(); selectQueue(one.queue); } });
        cell.append(link);
      } else cell.textContent = column.text(one);
    }
  }
  const stops = () => [...box.querySelectorAll("a, button")], focused = stops().indexOf(document.activeElement);
  box.replaceChildren(...(consumers.length ? [table] : []));
  if (focused >= 0) stops()[focused]?.focus({ preventScroll: true });
}
async function refreshAllConsumers(now) {
  if (now - consumersAt < CONSUMERS_MILLISECONDS) return;
  consumersAt = now;
  const response = await call(`v1/consumers?limit=${CONSUMER_QUEUES}`);
  if (!response.ok) return;
  const found = parse(await response.text());
  allConsumers = found.consumers;
  const more = allConsumers.length > CONSUMER_ROWS ? `; ${CONSUMER_ROWS} are shown` : "";
  $("consumer-count").textContent = `(${allConsumers.length}${found.next === null ? "" : ` of the first ${CONSUMER_QUEUES} queues by name`}${more})`;
  $("all-consumers").hidden = !allConsumers.length;
  showAllConsumers();
}
const showAllConsumers = () => showConsumerTable($("consumer-list"), allConsumers, OF_ALL);
// Names what holds the most, for the sentence at the top: a consumer that is late, or else the largest queue of those listed.
function holder() {
  const most = (list) => list.reduce((best, one) => !best || Number(one.bytes) > Number(best.bytes) ? one : best, null);
  const consumer = most(allConsumers), queue = total <= PAGE ? most(queues) : null;
  if (consumer && Number(consumer.bytes)) return `; consumer ${shownName(consumer.consumer)} of ${shownName(consumer.queue)} holds the most, ${bytes(consumer.bytes)}`;
  return queue ? `; queue ${shownName(queue.queue)} holds the most, ${bytes(queue.bytes)}` : "";
}
