# SPDX-License-Identifier: BSD-3-Clause
"""The bill of materials of a release, as CycloneDX 1.5 in JSON."""

import datetime
import hashlib
import json
from urllib.parse import quote


def component(library):
    """One of third_party.libraries()."""
    if library.packages:
        purl = f"pkg:deb/debian/{library.name}@{quote(library.version, safe='')}?arch=source"
    elif library.name.startswith("python"):
        purl = f"pkg:generic/python@{quote(library.version, safe='')}"
    else:
        purl = f"pkg:pypi/{library.name}@{quote(library.version, safe='')}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": library.name,
        "version": library.version,
        "licenses": [{"expression": library.licence}],
        "purl": purl,
        "scope": "optional" if library.use.startswith("loaded") else "required",
        "properties": [{"name": "lockstep:use", "value": library.use}],
    }


def artifact(path):
    return {
        "type": "file",
        "bom-ref": f"file:{path.name}",
        "name": path.name,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
    }


def bill(version, commit, epoch, artifacts, libraries):
    """<artifacts>: the files of the release; <epoch>: seconds, of the commit."""
    own = f"pkg:generic/lockstep@{version}"
    when = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": when,
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": "lockstep",
                "version": version,
                "licenses": [{"expression": "BSD-3-Clause"}],
                "purl": own,
                "properties": [{"name": "lockstep:commit", "value": commit}],
            },
        },
        "components": [component(library) for library in libraries] + [artifact(path) for path in artifacts],
    }
    document["dependencies"] = [
        {"ref": own, "dependsOn": [entry["bom-ref"] for entry in document["components"] if entry["type"] == "library"]}]
    return json.dumps(document, indent=1) + "\n"
