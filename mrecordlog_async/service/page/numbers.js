// How numbers are written, and JSON whose positions may exceed what a double holds exactly.
const SI = ["", " k", " M", " G"], BINARY = [" B", " KiB", " MiB", " GiB", " TiB"];
function scaled(value, step, units) {
  let unit = 0;
  while (value >= step && unit < units.length - 1) { value /= step; unit += 1; }
  return (unit && value < 100 ? value.toFixed(1) : Math.round(value).toString()) + units[unit];
}
const short = (value) => scaled(value, 1000, SI), rate = (value) => short(value) + "/s";
const bytes = (value) => scaled(value, 1024, BINARY);
const time = (seconds) => seconds >= 1 ? seconds.toFixed(1) + " s"
  : seconds >= 0.001 ? (seconds * 1e3).toFixed(1) + " ms" : Math.round(seconds * 1e6) + " µs";
// As the commands and errors write it: in whole units, and what is not over does not count.
function age(seconds) {
  if (seconds < 120) return Math.floor(seconds) + " s";
  if (seconds < 7200) return Math.floor(seconds / 60) + " min";
  return seconds < 172800 ? Math.floor(seconds / 3600) + " h" : Math.floor(seconds / 86400) + " d";
}
// Characters that turn text around or are not visible are shown by their numbers: a name must not look like another one.
const shownName = (name) => name.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
  (character) => "\\u" + character.charCodeAt(0).toString(16).padStart(4, "0"));
const count = (number, one) => `${number} ${one}${number === 1 ? "" : "s"}`;

// Positions that a double cannot hold exactly stay text.
const parse = (text) => JSON.parse(text, (key, value, context) =>
  typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) && context ? context.source : value);
function push(list, value, most) { list.push(value); if (list.length > most) list.shift(); }
