# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# Chooses LibTorch and installs it into .venv. Sourced by setup.sh after common.sh.

torch_index=${LOCKSTEP_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
index_seconds=5
minimum_torch=$(sed -n 's/^set(LOCKSTEP_LIBTORCH_MINIMUM \(.*\))$/\1/p' cmake/LockstepLibTorch.cmake)
pinned_torch=$(sed -n 's/^torch==//p' scripts/requirements.txt)

# What LOCKSTEP_TORCH asks for: torch_wheel, or torch_version ("" for any that is there and new enough, else the pinned one) and
# torch_variant (cpu, cuda, or "" for what fits the machine).
torch_wheel='' torch_version='' torch_variant=''
parse_torch_choice() {
  local choice=${LOCKSTEP_TORCH:-}
  if [[ -z $choice ]]; then return 0; fi
  if [[ -n ${LOCKSTEP_TORCH_PREFIX:-} ]]; then
    fail "both LOCKSTEP_TORCH and LOCKSTEP_TORCH_PREFIX are set; set LOCKSTEP_TORCH to install a LibTorch into .venv, or LOCKSTEP_TORCH_PREFIX to use one that is installed"
  fi
  if [[ $choice == *.whl ]]; then
    torch_wheel=$(cd "$caller_dir" && realpath -m -- "$choice")
    [[ -f $torch_wheel ]] || fail "LOCKSTEP_TORCH is $choice, but there is no such file; it must be the path of a wheel of torch"
    [[ $(basename "$torch_wheel") == torch-* ]] || fail "LOCKSTEP_TORCH is $choice, which is not a wheel of torch (torch-<version>-...whl)"
    return 0
  fi
  [[ $choice =~ ^([0-9]+\.[0-9]+\.[0-9]+)?(\+(cpu|cuda))?$ ]] ||
    fail "LOCKSTEP_TORCH is \"$choice\"; it must be [version][+cpu|+cuda], such as $pinned_torch, +cpu or $pinned_torch+cuda, or the path of a wheel"
  torch_version=${BASH_REMATCH[1]}
  torch_variant=${BASH_REMATCH[3]}
  if [[ -n $torch_version && "$(printf '%s\n' "$minimum_torch" "$torch_version" | sort -V | head -n 1)" != "$minimum_torch" ]]; then
    fail "LOCKSTEP_TORCH is $choice, but Lockstep needs torch $minimum_torch or later"
  fi
}

has_nvidia_gpu() { nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }

# Whether the build with CUDA is wanted, with all that it needs.
wants_cuda() { [[ $torch_variant == cuda ]] || { [[ -z $torch_variant ]] && has_nvidia_gpu; }; }

# Whether the LibTorch of .venv is used: the active Python has none, or is that of .venv.
wants_own_torch() {
  local active
  if [[ -n ${LOCKSTEP_TORCH_PREFIX:-} ]]; then return 1; fi
  active=$(active_python)
  [[ -n ${LOCKSTEP_TORCH:-} || $active == "$root/.venv/"* ]] || ! has_torch "$active" "$minimum_torch"
}

# has_torch <python> <oldest version>: whether its torch is at least that new; does not import it.
has_torch() {
  [[ -x $1 ]] && "$1" - "$2" >/dev/null 2>&1 <<'END'
import importlib.metadata, re, sys
have, need = ([int(n) for n in re.findall(r"\d+", v.split("+")[0])] for v in (importlib.metadata.version("torch"), sys.argv[1]))
sys.exit(have < need)
END
}

# has_chosen_torch: whether .venv has what LOCKSTEP_TORCH and the machine ask for.
has_chosen_torch() {
  local wanted=$torch_variant
  if wants_cuda; then wanted=cuda; fi
  .venv/bin/python - "$torch_wheel" "$torch_version" "$wanted" "$minimum_torch" >/dev/null 2>&1 <<'END'
import hashlib, importlib.metadata, json, pathlib, re, sys
wheel, version, variant, minimum = sys.argv[1:]
torch = importlib.metadata.distribution("torch")
if wheel:
    source = json.loads(torch.read_text("direct_url.json") or "{}").get("archive_info", {})
    digest = source.get("hashes", {}).get("sha256") or source.get("hash", "").removeprefix("sha256=")
    with open(wheel, "rb") as file:
        sys.exit(hashlib.file_digest(file, "sha256").hexdigest() != digest if hasattr(hashlib, "file_digest")
                 else hashlib.sha256(file.read()).hexdigest() != digest)
have = torch.version.split("+")[0]
numbers = lambda text: [int(n) for n in re.findall(r"\d+", text)]
if have != version if version else numbers(have) < numbers(minimum):
    sys.exit(1)
cuda = pathlib.Path(torch.locate_file("torch/lib/libtorch_cuda.so")).exists()
sys.exit(variant == "cuda" and not cuda or variant == "cpu" and cuda)
END
}

# On a terminal pip draws its progress; elsewhere a line tells of each download, with its size.
pip_install() {
  local pip=(.venv/bin/python -m pip install --disable-pip-version-check)
  if [[ -t 1 ]]; then
    "${pip[@]}" "$@" </dev/null
  else
    "${pip[@]}" --progress-bar off "$@" </dev/null | sed -nu '/^ *\(Downloading\|Installing collected\)/p'
  fi
}

# index_offers <version>: whether PyTorch's own index has it for this Python and machine, within index_seconds. Says in one
# line why not.
index_offers() {
  local answer
  answer=$(timeout "$index_seconds" .venv/bin/python - "$torch_index" "$1" 2>/dev/null <<'END'
import platform, re, sys, urllib.error, urllib.parse, urllib.request
index, version = sys.argv[1:]
python = "cp%d%d" % sys.version_info[:2]
try:
    with urllib.request.urlopen(index + "/torch/") as page:
        text = urllib.parse.unquote(page.read().decode())
except urllib.error.HTTPError as error:
    print("answered with the HTTP status %d" % error.code)
except OSError as error:
    print("could not be reached")
else:
    fits = re.search(r"torch-%s\+cpu-%s-%s-\w*%s\.whl" % (re.escape(version), python, python, platform.machine()), text)
    print("offers it" if fits else "has no CPU build of torch %s for Python %d.%d" % ((version,) + sys.version_info[:2]))
END
  ) || answer=
  if [[ $answer == "offers it" ]]; then return 0; fi
  say "PyTorch's index ($torch_index) ${answer:-did not answer within $index_seconds s}"
  return 1
}

# fetch_torch: torch itself, without what it requires.
fetch_torch() {
  local version=${torch_version:-$pinned_torch} options=(--no-deps --upgrade --force-reinstall) wanted
  if [[ -n $torch_wheel ]]; then
    say "Installing $torch_wheel"
    pip_install "${options[@]}" "$torch_wheel" || fail "pip could not install $torch_wheel; see its messages above"
    return
  fi
  if wants_cuda; then
    say "Downloading torch $version with CUDA from PyPI: 530 MB, and 2.2 GB of the libraries that it needs"
    # "===" is the very version, without a local one such as 2.13.0+cpu.
    retry 3 pip_install "${options[@]}" "torch===$version" ||
      fail "pip could not install torch $version with CUDA; see its messages above. LOCKSTEP_TORCH=<version>+cuda chooses another release"
    return
  fi
  if index_offers "$version"; then
    say "Downloading torch $version+cpu from PyTorch's index: 190 MB"
    if retry 2 pip_install "${options[@]}" --index-url "$torch_index" "torch==$version+cpu"; then return; fi
    say "PyTorch's index did not deliver it"
  fi
  if [[ $torch_variant == cpu ]]; then
    say "Asking pip's own sources for torch $version+cpu"
    pip_install "${options[@]}" "torch==$version+cpu" ||
      fail "LOCKSTEP_TORCH asks for a CPU build, which PyPI does not have: set LOCKSTEP_TORCH to the path of a wheel, or leave it unset and use the CPU part of PyPI's build"
    return
  fi
  say "Downloading torch $version from PyPI: 530 MB (a build with CUDA, of which the CPU part is used)"
  # pip's settings, or an old Python, may exclude the pinned release.
  wanted=">=$minimum_torch,<=$version"
  [[ -z $torch_version ]] || wanted="==$version"
  retry 3 pip_install "${options[@]}" "torch$wanted" || fail "pip could not install torch$wanted; see its messages above"
}

# torch_parts <cpu|headers>: the packages of CUDA that the CPU part of the torch in .venv is linked with, or that have the
# headers which its own packages leave out, in the version that it requires. Nothing for a CPU build.
torch_parts() {
  .venv/bin/python - "$1" <<'END'
import importlib.metadata, re, sys
extras, parts = {"cpu": ("cudart,cupti", ("runtime", "cupti")), "headers": ("crt,cccl", ("crt", "cccl"))}[sys.argv[1]]
for line in importlib.metadata.requires("torch") or ():
    toolkit = re.match(r"cuda-toolkit\b[^=]*==([0-9.]+)", line)
    part = re.match(r"(nvidia-cuda-(runtime|cupti))(-cu\d+)?==([0-9.]+)", line)
    if toolkit:
        print(f"cuda-toolkit[{extras}]=={toolkit[1]}")
    elif part and sys.argv[1] == "cpu":
        print(f"{part[1]}{part[3] or ''}=={part[4]}")
    elif part and part[2] == "runtime":  # the compiler's headers of CUDA 12 are among the runtime's
        release = ".".join(part[4].split(".")[:2])
        print(*(f"nvidia-cuda-{p}{part[3] or ''}~={release}.0" for p in (parts[1:] if part[3] else parts)), sep="\n")
END
}

# complete_torch <kind>: what the torch in .venv requires. Python's torch needs all of it; of a build with CUDA whose CPU
# part alone is used, C++ needs two small packages.
complete_torch() {
  local wanted headers=()
  if wants_cuda; then mapfile -t headers < <(torch_parts headers); fi
  if [[ $1 == tests ]] || wants_cuda; then
    wanted=("torch==$(.venv/bin/python -c 'import importlib.metadata as m; print(m.version("torch"))')" "${headers[@]}")
  else
    mapfile -t wanted < <(torch_parts cpu)
  fi
  if ((${#wanted[@]})); then
    # pip would complain that what Python's torch requires is missing.
    retry 3 pip_install --no-warn-conflicts "${wanted[@]}" || fail "pip could not install ${wanted[*]}; see its messages above"
  fi
}

# install_libtorch <kind>
install_libtorch() {
  make_venv
  has_chosen_torch || fetch_torch
  complete_torch "$1"
}
