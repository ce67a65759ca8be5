// Checks custom resources against their published definitions. Reads JSON documents, one a line, from
// standard input and prints what is wrong. deploy/validate.py runs it where the packages of
// @kubernetes-models are.
//
// The packages' validators accept unknown fields, so every key must also occur in the packages' types.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const packages = {
  "keda.sh/v1alpha1": "@kubernetes-models/keda",
  "monitoring.coreos.com/v1": "@kubernetes-models/prometheus-operator",
  "gateway.networking.k8s.io/v1": "@kubernetes-models/gateway-api",
};
const modules = join(process.cwd(), "node_modules");

function types(name, version) {
  const folder = join(modules, name, version);
  const files = readdirSync(folder).filter((file) => file.endsWith(".d.ts"));
  return files.map((file) => readFileSync(join(folder, file), "utf8")).join("\n");
}

// Maps with arbitrary keys, and Kubernetes' built-in types, which are in another package.
const opaque = ["metadata", "selector", "behavior", "labels", "annotations"];

function keys(value) {
  if (Array.isArray(value)) return value.flatMap(keys);
  if (value === null || typeof value !== "object") return [];
  return Object.entries(value).flatMap(([key, inner]) => [key, ...(opaque.includes(key) ? [] : keys(inner))]);
}

let wrong = 0;
for (const line of readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const document = JSON.parse(line);
  const { apiVersion, kind, metadata, spec } = document;
  const say = (what) => { wrong += 1; console.log(`${kind}/${metadata.name}: ${what}`); };
  const name = packages[apiVersion];
  if (!name) { say(`no schema for ${apiVersion}`); continue; }
  const file = join(modules, name, apiVersion, `${kind}.js`);
  try {
    const module = await import(pathToFileURL(file));
    new module[kind](document).validate();
  } catch (error) { say(error.message); }
  const text = types(name, apiVersion);
  for (const key of new Set(keys(spec))) {
    if (!new RegExp(`^\\s*"?${key.replace(/[^\w]/g, "\\$&")}"?\\??:`, "m").test(text)) say(`unknown field ${key}`);
  }
}
process.exit(wrong ? 1 : 0);
