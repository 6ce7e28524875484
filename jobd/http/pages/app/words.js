// Numbers, times and states in words.

const MINUTE = 60, HOUR = 3600, DAY = 86400;
const clock = { ahead_ms: 0 };

// The time of the server in ms since 1970, by the Date header of its last answer: a phone's clock may be minutes off.
export function now() {
  return Date.now() + clock.ahead_ms;
}

export function learnTime(date) {
  const ahead = Date.parse(date) - Date.now();
  if (Number.isFinite(ahead)) clock.ahead_ms = Math.abs(ahead) < 2000 ? 0 : ahead;
}

// 4821 -> "4 821"; large ones short: 1.2 M.
export function count(number) {
  if (number === null || number === undefined) return "–";
  if (Math.abs(number) >= 1e7) return `${(number / 1e6).toFixed(1)} M`;
  return String(Math.round(number)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond === 0) return "0";
  if (perSecond < 1 / MINUTE) return `${(perSecond * HOUR).toFixed(1)} /h`;
  if (perSecond < 1) return `${(perSecond * MINUTE).toFixed(1)} /min`;
  return `${perSecond < 10 ? perSecond.toFixed(1) : count(perSecond)} /s`;
}

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (number >= 1000 && unit < 4) { number /= 1000; unit += 1; }
  return `${number < 10 && unit ? number.toFixed(1) : Math.round(number)} ${units[unit]}`;
}

// A span of seconds: 0.42 -> "420 ms", 95 -> "1 min 35 s".
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < MINUTE) return `${Math.round(seconds)} s`;
  if (seconds < HOUR) return pair(seconds, MINUTE, "min", 1, "s");
  if (seconds < DAY) return pair(seconds, HOUR, "h", MINUTE, "min");
  return pair(seconds, DAY, "d", HOUR, "h");
}

function pair(seconds, large, largeName, small, smallName) {
  const rest = Math.floor((seconds % large) / small);
  return `${Math.floor(seconds / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

// A moment against now, short: "12 s ago", "in 4 min".
export function ago(ts) {
  const seconds = (now() - ts) / 1000, size = Math.abs(seconds);
  if (size < 2) return "now";
  const [unit, name] = size < MINUTE ? [1, "s"] : size < HOUR ? [MINUTE, "min"] : size < 2 * DAY ? [HOUR, "h"] : [DAY, "d"];
  const text = `${Math.floor(size / unit)} ${name}`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

export function absolute(ts) {
  return new Date(ts).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function pretty(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

export function shortId(id) {
  return id.slice(-8);
}

// 3 -> "third".
export function ordinal(number) {
  const words = ["zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"];
  return words[number] || `number ${count(number)}`;
}
