// A `skein serve` on loopback, and its worker processes.
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';

const DEADLINE_MS = 60_000;
const POLL_MS = 20;

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits until `check` returns something true, and returns it. */
export async function until(what, check) {
  for (const end = Date.now() + DEADLINE_MS; Date.now() < end; await pause(POLL_MS)) {
    const value = await check();
    if (value) return value;
  }
  throw new Error(`not within ${DEADLINE_MS / 1000} s: ${what}`);
}

async function freePort() {
  const listener = net.createServer();
  await new Promise((resolve) => listener.listen(0, '127.0.0.1', resolve));
  const { port } = listener.address();
  await new Promise((resolve) => listener.close(resolve));
  return port;
}

export class Server {
  static async start(...args) {
    const server = new Server();
    const port = await freePort();
    server.url = `http://127.0.0.1:${port}`;
    const options = { stdio: ['ignore', 'ignore', 'pipe'] };
    server.process = spawn(process.env.TEST_BINARY, ['serve', '--port', port, ...args], options);
    server.log = '';
    server.process.stderr.on('data', (part) => (server.log = (server.log + part).slice(-20_000)));
    await until(`the server is ready: ${server.log}`, async () => {
      if (server.process.exitCode !== null) throw new Error(`the server ended: ${server.log}`);
      return (await fetch(`${server.url}/readyz`).catch(() => null))?.ok;
    });
    return server;
  }

  /** Waits until `count` workers take requests. */
  async workers(count, key) {
    return until(`${count} workers are ready`, async () => {
      const { workers } = await this.cluster(key);
      return workers.filter((worker) => worker.ready).length === count && workers;
    });
  }

  async cluster(key) {
    const headers = key ? { authorization: `Bearer ${key}` } : {};
    return (await fetch(`${this.url}/v1/cluster`, { headers })).json();
  }

  /** Process ids of its workers by name. */
  pids() {
    const found = new Map();
    for (const pid of fs.readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
      try {
        const parent = fs.readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ')[1];
        const name = /--supervised=([^\0]+)/.exec(fs.readFileSync(`/proc/${pid}/cmdline`, 'utf8'))?.[1];
        if (name && Number(parent) === this.process.pid) found.set(name, Number(pid));
      } catch {
        // It has ended.
      }
    }
    return found;
  }

  signal(name) {
    for (const pid of this.pids().values()) process.kill(pid, name);
  }

  async end() {
    const ended = new Promise((resolve) => this.process.once('exit', resolve));
    if (this.process.exitCode !== null) return;
    this.process.kill('SIGTERM');
    const late = setTimeout(() => this.process.kill('SIGKILL'), 30_000);
    await ended;
    clearTimeout(late);
  }
}
