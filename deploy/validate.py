"""Renders and checks the manifests and the chart; deploy/validate fetches what this needs and runs it.

- Every document is strictly valid in the schemas of three Kubernetes versions; custom resources in their own.
- Beyond schemas: selectors match pods, ports exist, grace exceeds drain, pods are locked down.
- The chart and kustomize render the same documents.
- Grafana's types (its foundation SDK) read every field of the dashboards.
- The checks detect planted mistakes.
"""

import copy
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import jsonschema
import kubernetes_validate
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

DEPLOY = pathlib.Path(__file__).resolve().parent
ROOT = DEPLOY.parent
CHART = DEPLOY / "helm/skein"
# The oldest version with `preStop: sleep`, the version of kubectl, and the newest one with a schema.
VERSIONS = ["1.30", "1.34", "1.37"]
# Checked by crds.mjs. Kinds that no package publishes are in `OWN` and checked by schemas/.
PUBLISHED = ("keda.sh/", "monitoring.coreos.com/", "gateway.networking.k8s.io/")
OWN = ("InferencePool", "LeaderWorkerSet", "Certificate", "Issuer")
WORKLOADS = ("StatefulSet", "Deployment", "LeaderWorkerSet")
# Renderings: name, directory, components, and the chart's flags with the same result.
RENDERINGS = [
    ("base", "base", [], []),
    ("cpu-demo", "overlays/cpu-demo", [], ["--values", "cpu-demo"]),
    ("gpu-single-node", "overlays/gpu-single-node", [], ["--values", "gpu-single-node"]),
    ("hpa", "base", ["hpa"], ["--set", "autoscaling.kind=hpa"]),
    ("keda", "base", ["keda"], ["--set", "autoscaling.kind=keda"]),
    ("monitoring", "base", ["monitoring"], ["--set", "monitoring.enabled=true"]),
    ("cpu-demo with hpa and monitoring", "overlays/cpu-demo", ["hpa", "monitoring"],
     ["--values", "cpu-demo", "--set", "autoscaling.kind=hpa,monitoring.enabled=true"]),
    ("etcd", "base", ["etcd"], ["--values", "etcd"]),
    ("gpu-single-node with etcd", "overlays/gpu-single-node", ["etcd"], None),
    ("gpu-groups", "overlays/gpu-groups", [], None),
    ("gpu-groups with etcd and traces", "overlays/gpu-groups", ["etcd", "traces"], None),
    ("gpu-groups with hpa", "overlays/gpu-groups", ["hpa-groups"], None),
    ("gpu-groups with keda", "overlays/gpu-groups", ["keda-groups"], None),
    ("model-download", "model-download", [], None),
    ("dashboards", "base", ["dashboards"], None),
    ("traces", "base", ["traces"], ["--values", "traces"]),
    ("cert-manager", "base", ["cert-manager"], None),
    ("gpu-single-node with cert-manager", "overlays/gpu-single-node", ["cert-manager"], None),
    ("inference-gateway", "base", ["inference-gateway", "hpa", "monitoring"], None),
    ("inference-gateway with a claim", "overlays/gpu-single-node", ["inference-gateway", "inference-gateway-claim"], None),
]  # fmt: skip
# Components that must fail with this base, because they cannot scale its workers.
MISFITS = [("overlays/gpu-groups", "hpa"), ("overlays/gpu-groups", "keda"), ("base", "hpa-groups"), ("base", "keda-groups")]


def module(path):
    """Imports a script without a suffix."""
    loader = importlib.machinery.SourceFileLoader(path.stem, str(path))
    loaded = importlib.util.module_from_spec(importlib.util.spec_from_loader(path.stem, loader))
    loader.exec_module(loaded)
    return loaded


generate = module(DEPLOY / "helm/generate")
check = module(DEPLOY / "check.py")


def named(document):
    return f"{document['kind']}/{document['metadata']['name']}"


def invalid(documents):
    """Violations of schemas."""
    ours = [document for document in documents if document["apiVersion"].startswith(PUBLISHED)]
    for document in documents:
        if document["kind"] in OWN:
            yield from invalid_by_own_schema(document)
        elif document not in ours:
            yield from invalid_in_kubernetes(document)
        if document["kind"] == "LeaderWorkerSet":
            pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(template(document))}
            pod["metadata"]["name"] = f"{document['metadata']['name']}-0"
            yield from invalid_in_kubernetes(pod)
    if ours:
        lines = "\n".join(map(json.dumps, ours))
        command = ["node", str(DEPLOY / "crds.mjs")]
        done = subprocess.run(command, input=lines, cwd=os.environ["MODELS"], capture_output=True, text=True)
        if done.returncode:
            yield from (done.stdout or done.stderr).splitlines()


def invalid_in_kubernetes(document):
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{named(document)} in Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}"


def invalid_by_own_schema(document):
    schema = json.loads((DEPLOY / f"schemas/{document['kind']}.json").read_text("utf-8"))
    for error in jsonschema.Draft202012Validator(schema).iter_errors(document):
        yield f"{named(document)}: {'.'.join(map(str, error.path))}: {error.message}"


def template(workload):
    """Pod template of a workload."""
    spec = workload["spec"]
    return spec["leaderWorkerTemplate"]["workerTemplate"] if workload["kind"] == "LeaderWorkerSet" else spec["template"]


def selects(selector, labels):
    return selector and all(labels.get(key) == value for key, value in selector.items())


def unlocked(pod, inner):
    """Requirements of the `restricted` Pod Security Standard and our own rules that a container misses."""
    security = pod.get("securityContext", {})
    own = inner.get("securityContext", {})
    wanted = {
        "automountServiceAccountToken: false": pod.get("automountServiceAccountToken") is False,
        "enableServiceLinks: false": pod.get("enableServiceLinks") is False,
        "runAsNonRoot": security.get("runAsNonRoot") is True and security.get("runAsUser", 0) > 0,
        "seccompProfile RuntimeDefault": security.get("seccompProfile") == {"type": "RuntimeDefault"},
        "allowPrivilegeEscalation: false": own.get("allowPrivilegeEscalation") is False,
        "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is True,
        "drop ALL": own.get("capabilities") == {"drop": ["ALL"]},
        "requests and a memory limit": "requests" in inner["resources"] and "memory" in inner["resources"]["limits"],
        "topologySpreadConstraints": bool(pod.get("topologySpreadConstraints")),
        "an image with a version": re.search(r"[:@][\w.:-]*\d[\w.:-]*$", inner["image"]),
    }
    return [what for what, holds in wanted.items() if not holds]


def drain(pod, inner):
    """Grace must exceed preStop and --shutdown-timeout together."""
    timeouts = [re.fullmatch(r"--shutdown-timeout=(\d+)s", arg) for arg in inner["args"]]
    seconds = sum(int(found.group(1)) for found in timeouts if found)
    seconds += inner.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    grace = pod.get("terminationGracePeriodSeconds", 30)
    return [] if any(timeouts) and grace > seconds else [f"{grace} s of grace for {seconds} s of drain"]


def probes(_pod, inner):
    asks = [{key: value for key, value in inner.get(f"{name}Probe", {}).items() if key in ("grpc", "httpGet")}
            for name in ("readiness", "liveness", "startup")]  # fmt: skip
    ports = {port["name"]: port["containerPort"] for port in inner["ports"]}
    for ask in asks:
        port = ask.get("grpc", ask.get("httpGet", {})).get("port")
        if ports.get(port, port) not in ports.values():
            yield f"a probe asks port {port}, the container has {ports}"
    if asks[0] == asks[1]:
        yield "liveness is readiness: a worker that drains, or a router without workers, would be killed"
    startup = inner["startupProbe"]
    if startup["periodSeconds"] * startup["failureThreshold"] < 120:
        yield "the startup probe gives up within two minutes"


def arguments(pod, inner):
    """`skein` must accept the command line, and no flag may occur twice."""
    command, *rest = inner["args"]
    given = [arg.removeprefix("--").split("=")[0] for arg in rest if arg.startswith("--")]
    for flag in given:
        if flag not in check.flags()[command]:
            yield f"`skein {command}` has no flag --{flag}"
        if given.count(flag) > 1:
            yield f"--{flag} is given twice"
    mounts = [mount["mountPath"] for mount in inner.get("volumeMounts", [])]
    if not rest[0].startswith("/models/skein-7m") and rest[0] not in mounts:
        yield f"the model {rest[0]} is neither in the image nor mounted at {mounts}"
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    if volumes != {mount["name"] for one in pod["containers"] for mount in one.get("volumeMounts", [])}:
        yield "volumes and mounts differ"


def unfounded(documents):
    """References from one document to another that do not exist."""
    of = lambda *kinds: [document for document in documents if document["kind"] in kinds]
    names = set(map(named, documents))
    pods = [template(workload) for workload in of(*WORKLOADS, "Job")]
    labels = [pod["metadata"]["labels"] for pod in pods]
    selectors = [(d, d["spec"]["selector"]) for d in of("Service")]
    selectors += [(d, d["spec"]["selector"]["matchLabels"]) for d in of("PodDisruptionBudget", "PodMonitor")]
    selectors += [(d, d["spec"]["podSelector"]["matchLabels"]) for d in of("NetworkPolicy")]
    selectors += [(d, d["spec"]["selector"]["matchLabels"]) for d in of("InferencePool")]
    for document, selector in selectors:
        if sum(selects(selector, pod) for pod in labels) != 1:
            yield f"{named(document)}: selects the pods of another number of workloads than one: {selector}"
    for workload in of(*WORKLOADS):
        if f"ServiceAccount/{template(workload)['spec']['serviceAccountName']}" not in names:
            yield f"{named(workload)}: no such service account"
        service = workload["spec"].get("serviceName")
        if service and f"Service/{service}" not in names:
            yield f"{named(workload)}: no Service {service}"
        for dns, port in re.findall(r"dns://([\w-]+):(\d+)", arguments_of(workload)):
            headless = [d["spec"] for d in of("Service") if d["metadata"]["name"] == dns]
            if not headless or headless[0].get("clusterIP") != "None" or headless[0]["ports"][0]["port"] != int(port):
                yield f"{named(workload)}: {dns}:{port} is no headless Service"
    made = {certificate["spec"]["secretName"] for certificate in of("Certificate")}
    for issuer in of("Issuer"):
        wanted = issuer["spec"].get("ca", {}).get("secretName")
        if wanted and wanted not in made:
            yield f"{named(issuer)}: no certificate is kept in the Secret {wanted}"
    for certificate in of("Certificate"):
        reference = certificate["spec"]["issuerRef"]
        if f"{reference.get('kind', 'Issuer')}/{reference['name']}" not in names:
            yield f"{named(certificate)}: no such issuer"
        if not certificate["spec"].get("isCA") and "skein-cluster" not in certificate["spec"]["dnsNames"]:
            yield f"{named(certificate)}: nodes do not recognise it without the name skein-cluster"
    for workload in of(*WORKLOADS) if made else []:
        for volume in template(workload)["spec"].get("volumes", []):
            if "secret" in volume and volume["secret"]["secretName"] not in made:
                yield f"{named(workload)}: nothing makes the Secret {volume['secret']['secretName']}"
    for scaler in of("HorizontalPodAutoscaler", "ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]
        if f"{target['kind']}/{target['name']}" not in names:
            yield f"{named(scaler)}: scales {target['name']}, which is not there"
        if any("replicas" in workload["spec"] for workload in of("StatefulSet", "LeaderWorkerSet")):
            yield f"{named(scaler)}: the manifest sets replicas, too"


def arguments_of(workload):
    return " ".join(arg for inner in template(workload)["spec"]["containers"] for arg in inner["args"])


def uneven(documents):
    """Workers and routers with different settings for discovery or traces."""
    pods = [(workload, yaml.safe_dump(template(workload))) for workload in documents if workload["kind"] in WORKLOADS]
    secret = r"SKEIN_CLUSTER_SECRET\n *valueFrom:\n(?: +.*\n){3}"
    for what in (r"--discovery=etcd://\S+", r"OTEL_EXPORTER_OTLP_ENDPOINT\n *value: \S+", r"--cluster-\w+=\S+", secret):
        found = {named(workload): re.findall(what, pod) for workload, pod in pods}
        # A pod may have several containers with the same.
        if len({frozenset(values) for values in found.values()}) > 1:
            yield f"not the same in all pods: {found}"
    for workload, pod in pods:
        if "--discovery=etcd" in pod and workload["kind"] != "Deployment" and "--advertise=" not in pod:
            yield f"{named(workload)}: publishes no address in etcd"


def unpicked(documents):
    """Mismatches within an inference pool: picker, ports, endpoints."""
    of = lambda *kinds: [document for document in documents if document["kind"] in kinds]
    for pool in of("InferencePool"):
        [port] = [port["number"] for port in pool["spec"]["targetPorts"]]
        wanted_labels = pool["spec"]["selector"]["matchLabels"]
        members = [w for w in of(*WORKLOADS) if selects(wanted_labels, template(w)["metadata"]["labels"])]
        for member in members:
            if f"--port={port}" not in arguments_of(member) or "--follow-picks" not in arguments_of(member):
                yield f"{named(pool)}: {named(member)} has no router on port {port} that follows picks"
        wanted = pool["spec"]["endpointPickerRef"]
        for service in of("Service"):
            ports = [port["port"] for port in service["spec"]["ports"]]
            if service["metadata"]["name"] == wanted["name"] and wanted["port"]["number"] in ports:
                labels = service["spec"]["selector"]
                pickers = [w for w in of("Deployment") if selects(labels, template(w)["metadata"]["labels"])]
                if not pickers or any(f"--endpoint-port={port}" not in arguments_of(picker) for picker in pickers):
                    yield f"{named(pool)}: its picker does not answer with port {port}"
                break
        else:
            yield f"{named(pool)}: no Service {wanted['name']} with port {wanted['port']['number']}"
    for route in of("HTTPRoute"):
        for backend in route["spec"]["rules"][0]["backendRefs"]:
            if f"{backend['kind']}/{backend['name']}" not in map(named, documents):
                yield f"{named(route)}: no {backend['kind']} {backend['name']}"


def groups_differ():
    """The pods of gpu-groups must equal those of gpu-single-node."""
    render = lambda base: generate.kustomize(base=f"overlays/{base}")
    pods = [template(w) for base in ("gpu-single-node", "gpu-groups") for w in render(base)
            if w["metadata"]["name"] == "skein-worker" and w["kind"] in WORKLOADS]  # fmt: skip
    if pods[0] != pods[1]:
        yield "gpu-groups: its pods are not those of gpu-single-node"


def queries(text):
    """Metrics that autoscalers query must exist in the worker's code."""
    code = (ROOT / "worker/src/metrics/mod.rs").read_text("utf-8")
    for metric in set(re.findall(r"vllm[:_][a-z_]+", text)):
        if f'"{metric.replace("vllm_", "vllm:")}"' not in code:
            yield f"workers have no metric {metric}"


def faults(documents):
    """All faults of one rendering."""
    yield from invalid(documents)
    yield from unfounded(documents)
    scalers = [d for d in documents if d["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")]
    yield from queries(yaml.safe_dump_all(scalers))
    yield from unpicked(documents)
    yield from uneven(documents)
    for job in (document for document in documents if document["kind"] == "Job"):
        pod = template(job)["spec"]
        for inner in [*pod["initContainers"], *pod["containers"]]:
            lacks = [what for what in unlocked(pod, inner) if what != "topologySpreadConstraints"]
            yield from (f"{named(job)}: {inner['name']}: lacks {what}" for what in lacks)
    for workload in documents:
        pod = template(workload)["spec"] if workload["kind"] in WORKLOADS else {}
        for inner in pod.get("containers", []):
            unlocks = map("lacks {}".format, unlocked(pod, inner))
            for fault in [*unlocks, *drain(pod, inner), *probes(pod, inner), *arguments(pod, inner)]:
                yield f"{named(workload)}: {inner['name']}: {fault}"


def helm(*arguments):
    return subprocess.run([os.environ["HELM"], *arguments], capture_output=True, text=True)


def chart(release, flags):
    """Documents that the chart renders."""
    files = [str(DEPLOY / f"helm/values/{flag}.yaml") if before == "--values" else flag
             for before, flag in zip([None, *flags], flags)]  # fmt: skip
    done = helm("template", release, str(CHART), *files)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def without_namespace(documents):
    """Removes the namespace from the chart's queries, because kustomize's manifests do not name it."""
    return json.loads(json.dumps(documents).replace('namespace=\\"default\\",', ""))


def in_order(documents):
    """Sorts documents, and the variables and volumes of pods, by name for comparison."""
    documents = sorted(copy.deepcopy(documents), key=named)
    for document in documents:
        pod = document.get("spec", {}).get("template", {}).get("spec", {})
        inner = pod.get("containers", [{}])[0]
        for value in (inner.get("env"), pod.get("volumes"), inner.get("volumeMounts")):
            if value:
                value.sort(key=lambda entry: entry["name"])
    return documents


def differences(name, documents, flags):
    ours = {named(document): document for document in in_order(documents)}
    # The chart draws the secret that kustomize's users make by hand.
    rendered = [document for document in without_namespace(chart("skein", flags)) if document["kind"] != "Secret"]
    theirs = {named(document): document for document in in_order(rendered)}
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            texts = [yaml.safe_dump(side.get(key)).splitlines() for side in (ours, theirs)]
            lines = [line for line in [*texts[0], *texts[1]] if (line in texts[0]) != (line in texts[1])]
            yield f"{name}: chart and kustomize differ in {key}: {lines[:6]}"


def chart_faults():
    linted = helm("lint", "--strict", str(CHART))
    if linted.returncode:
        yield linted.stdout + linted.stderr
    refused = ["router.replica=3", "autoscaling.kind=vpa", "worker.replicas=two", "model.existingClaim=mine",
               "shutdownTimeout=5m", "shutdownTimeout=145s"]  # fmt: skip
    for flags in (["--set", setting] for setting in refused):
        if helm("template", "skein", str(CHART), *flags).returncode == 0:
            yield f"the chart accepts {flags[1]}"
    other = chart("blue", ["--set", "autoscaling.kind=keda,monitoring.enabled=true,worker.extraArgs={--max-num-seqs=8}"])
    yield from faults(other)
    if re.search(r"(?<!replacement: )(?<!job=.)skein-(worker|router)\b", yaml.safe_dump_all(other)) or "--max-num-seqs=8" not in str(other):
        yield "another release's name, or further arguments, do not reach all documents"
    settings = {
        "shutdownTimeout": "300s", "terminationGracePeriodSeconds": 330, "imagePullSecrets": [{"name": "mine"}],
        "monitoring": {"enabled": True, "labels": {"release": "mine"}},
        **{role: {"podAnnotations": {"mine": "yes"}, "priorityClassName": "mine", "extraEnv": [{"name": "MINE", "value": "1"}],
                  "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}
           for role in ("router", "worker")},
    }  # fmt: skip
    full = chart("blue", [part for key, value in settings.items() for part in ("--set-json", f"{key}={json.dumps(value)}")])
    yield from faults(full)
    for workload in (document for document in full if document["kind"] in WORKLOADS):
        text = yaml.safe_dump(template(workload))
        wanted = ["--shutdown-timeout=300s", "terminationGracePeriodSeconds: 330", "imagePullSecrets:\n  - name: mine"]
        wanted += ["annotations:\n    mine: 'yes'", "priorityClassName: mine", "name: MINE", "nodeAffinity"]
        yield from (f"the chart's {named(workload)} lacks {what}" for what in wanted if what not in text)
    if str(full).count("'release': 'mine'") != 2:
        yield "monitoring.labels do not reach both monitors"


def compose_faults(services):
    """Faults of our services in the compose file: flags, drain, confinement."""
    for name, service in services.items():
        if not service["image"].startswith("localhost/skein/"):
            continue
        pod = {"containers": [{"args": service["command"]}]}
        pod["terminationGracePeriodSeconds"] = int(service["stop_grace_period"].removesuffix("s"))
        known = check.flags()[service["command"][0]]
        for arg in service["command"][2:]:
            if arg.removeprefix("--").split("=")[0] not in known:
                yield f"compose.yaml: {name}: no flag {arg}"
        yield from (f"compose.yaml: {name}: {fault}" for fault in drain(pod, pod["containers"][0]))
        locked = [service.get("read_only"), service.get("cap_drop") == ["ALL"], service.get("user") == "65532:65532"]
        if not all(locked):
            yield f"compose.yaml: {name} may write its root, keeps capabilities or runs as another user"
        for peer in re.findall(r"([\w-]+):9000", " ".join(service["command"])):
            if peer not in services and peer != "0":
                yield f"compose.yaml: {name} asks {peer}, which is no service"


def lost(given, kept, path=""):
    """Paths of the values of `given` that differ in or are missing from `kept`."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            yield from lost(value, kept[key], f"{path}.{key}") if key in kept else [f"{path}.{key}"]
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for index, (value, other) in enumerate(zip(given, kept)):
            yield from lost(value, other, f"{path}[{index}]")
    elif given != kept:
        yield path


def dashboard_faults(name, dashboard):
    """Fields that Grafana's types do not have: they get lost when the dashboard is parsed and serialised."""
    try:
        read = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        yield f"{name}: Grafana's types refuse it: {error!r}"
        return
    yield from (f"{name}: Grafana knows no{path.replace('.', ' ', 1)}" for path in lost(dashboard, read))


def planted_in_dashboards(dashboard):
    edits = {
        "a misspelt field of a dashboard": lambda d: d.update(refesh="10s"),
        "a misspelt field of a panel": lambda d: d["panels"][0].update(gridPosition={}),
        "a misspelt field of a query": lambda d: d["panels"][0]["targets"][0].update(expression="up"),
        "a misspelt unit": lambda d: d["panels"][0]["fieldConfig"]["defaults"].update(unitt="s"),
        "a list for an object": lambda d: d["panels"][0].update(gridPos=[1]),
    }
    for name, edit in edits.items():
        copied = copy.deepcopy(dashboard)
        edit(copied)
        if not any(dashboard_faults("", copied)):
            yield f"planted, and not noticed: {name}"


def all_dashboard_faults():
    register_default_plugins()
    files = sorted((DEPLOY / "observability/grafana/dashboards").glob("*.json"))
    for file in files:
        yield from dashboard_faults(file.name, json.loads(file.read_text("utf-8")))
    yield from planted_in_dashboards(json.loads(files[0].read_text("utf-8")))


def planted(documents):
    """Mistakes that the checks must detect, each one edit of the base."""
    find = lambda copied, kind: next(d for d in copied if d["kind"] == kind)
    pod = lambda copied, kind: find(copied, kind)["spec"]["template"]["spec"]
    edits = {
        "a misspelt field": lambda c: find(c, "StatefulSet")["spec"].update(replicaz=2),
        "a string for a number": lambda c: find(c, "Deployment")["spec"].update(replicas="2"),
        "an unknown flag": lambda c: pod(c, "StatefulSet")["containers"][0]["args"].append("--etcd=x"),
        "grace below drain": lambda c: pod(c, "Deployment").update(terminationGracePeriodSeconds=124),
        "a writable root": lambda c: pod(c, "Deployment")["containers"][0]["securityContext"].pop("readOnlyRootFilesystem"),
        "a selector without pods": lambda c: find(c, "Service")["spec"]["selector"].update({"app.kubernetes.io/component": "x"}),
        "a probe of no port": lambda c: pod(c, "StatefulSet")["containers"][0]["readinessProbe"]["httpGet"].update(port=9001),
        "liveness that asks readiness": lambda c: pod(c, "Deployment")["containers"][0]["livenessProbe"]["httpGet"].update(path="/readyz"),
        "a Service that is not headless": lambda c: [d["spec"].pop("clusterIP", 0) for d in c if d["kind"] == "Service"],
        "a monitor's misspelt field": lambda c: find(c, "PodMonitor")["spec"]["podMetricsEndpoints"][0].update(intervall="1s"),
        "a scaler of nothing": lambda c: find(c, "ScaledObject")["spec"]["scaleTargetRef"].update(name="x"),
        "a pool's misspelt field": lambda c: find(c, "InferencePool")["spec"].update(targetPort=8000),
        "a pool without its picker": lambda c: find(c, "InferencePool")["spec"]["endpointPickerRef"].update(name="x"),
        "endpoints on another port": lambda c: find(c, "InferencePool")["spec"]["targetPorts"][0].update(number=9000),
        "a route's misspelt field": lambda c: find(c, "HTTPRoute")["spec"].update(parentRefz=[]),
        "a neighbour with a writable root": lambda c: pod(c, "StatefulSet")["containers"][1]["securityContext"].pop("readOnlyRootFilesystem"),
        "an issuer without its key": lambda c: [d["spec"]["ca"].update(secretName="x") for d in c if d["kind"] == "Issuer" and "ca" in d["spec"]],
        "a certificate of no issuer": lambda c: find(c, "Certificate")["spec"]["issuerRef"].update(name="x"),
        "a certificate without the cluster's name": lambda c: [d["spec"].update(dnsNames=["x"]) for d in c if d["kind"] == "Certificate" and "isCA" not in d["spec"]],
        "a certificate's misspelt field": lambda c: find(c, "Certificate")["spec"].update(renewBefor="1h"),
        "a mounted Secret that nobody makes": lambda c: [v["secret"].update(secretName="x") for v in pod(c, "Deployment")["volumes"] if "secret" in v],
        "a metric that nobody has": lambda c: find(c, "ScaledObject")["spec"]["triggers"][0]["metadata"].update(query="vllm:no_such"),
    }  # fmt: skip
    for name, edit in edits.items():
        copied = copy.deepcopy(documents)
        edit(copied)
        if not any(faults(copied)):
            yield f"planted, and not noticed: {name}"


def main():
    found, checked = [], 0
    for name, base, components, flags in RENDERINGS:
        documents = generate.kustomize(*components, base=base)
        checked += len(documents)
        found += [f"{name}: {fault}" for fault in faults(documents)]
        found += differences(name, documents, flags) if flags is not None else []
    for base, component in MISFITS:
        try:
            generate.kustomize(component, base=base)
            found.append(f"{component} renders with {base}, whose workers it does not scale")
        except subprocess.CalledProcessError:
            pass
    found += chart_faults()
    found += compose_faults(yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"])
    found += planted(generate.kustomize("keda", "monitoring", "inference-gateway", "cert-manager"))
    found += groups_differ()
    found += all_dashboard_faults()
    if module(DEPLOY / "observability/prometheus-rule").main(["--check"]):
        found.append("prometheus-rule.yaml is out of date; run deploy/observability/prometheus-rule")
    if generate.main(["--check"]):
        found.append("the chart's templates are out of date; run deploy/helm/generate")
    print("\n".join(found) or f"{len(RENDERINGS)} renderings, {checked} documents, valid for Kubernetes {', '.join(VERSIONS)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
