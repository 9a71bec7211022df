// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/python_group.h"

#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/version.h>

#include <lockstep/version.h>

#include "backends/group_membership.h"
#include "backends/reconfigurable_backend.h"
#include "base/deadline.h"
#include "base/rank_progress.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "comm/from_c10d.h"
#include "device/libtorch_versions.h"
#include "rendezvous/store_barrier.h"

namespace lockstep::rendezvous {
namespace {

using Create = backends::BackendHandle (*)(const std::string& backend, backends::BackendRequest request);

// Of PyTorch's names, which backends of other devices use too, and of the same ranks more than once.
comm::FromC10d::Split split_of(const std::string& backend, Create create) {
  auto counts = std::make_shared<std::map<std::string, int>>();
  return [backend, create, counts](const comm::FromC10d::Part& part) {
    const auto key = fmt::format("{} {}", part.name, fmt::join(part.ranks, ","));
    const auto prefix = fmt::format("{}/{}/{}/", backend, key, ++(*counts)[key]);
    return create(backend, {.store = c10::make_intrusive<c10d::PrefixStore>(prefix, part.store),
                            .rank = part.rank,
                            .size = static_cast<int>(part.ranks.size()),
                            .timeout = part.timeout,
                            .group_name = part.name})
        .backend;
  };
}

constexpr int kPollsOfSharedStore = 3;

// Gloo's key of its address, below PyTorch's of the group and device.
std::string gloo_key(int rank) { return fmt::format("0/{}", rank); }

}  // namespace

void check_backend_with_python(const backends::BackendSpec& backend, const std::string& what) {
  const auto name = backend.text();
  if (name == "gloo" || name == "shm" || name == "hierarchical" || name == "nccl") return;
  throw_error<ArgumentError>(
      "{} cannot be combined with the backend {}; name the one of the Python ranks: gloo, shm, "
      "hierarchical or nccl",
      what, name);
}

bool python_splits_default_group(const backends::BackendSpec& default_group,
                                 const backends::BackendSpec& wanted, const Env& env) {
  return libtorch::is_at_least(2, 15) && libtorch::python_uses_nccl2(env) && default_group.text() == "nccl" &&
         wanted.text() == "nccl";
}

c10::intrusive_ptr<c10d::Store> store_of_python(c10::intrusive_ptr<c10d::Store> run, const std::string& key,
                                                const std::string& device_type) {
  // PyTorch's name of the default group is "0", and the other groups' keys are below it.
  auto group = c10::make_intrusive<c10d::PrefixStore>("0/", std::move(run));
  if (!key.empty()) group = c10::make_intrusive<c10d::PrefixStore>(key + "/", group);
  return c10::make_intrusive<c10d::PrefixStore>(device_type + "/", group);
}

void agree_on_backend(c10d::Store& cpu_store, const std::string& backend, int rank, int size) {
  const auto own =
      fmt::format("{} of Lockstep {} with LibTorch {}", backend, lockstep::version(), TORCH_VERSION);
  const auto theirs = cpu_store.compareSet("backend", "", own);
  if (theirs == own) return;
  throw_error<RendezvousError>(
      Reporter{rank, size},
      "the backend is {} here and {} on another rank; give all ranks of the group "
      "the same backend and the same versions, and each group a store or port of its own",
      own, theirs);
}

std::function<void()> refuse_python_ranks(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                                          bool shared) {
  const auto refuse = [rank, world_size] {
    throw_error<RendezvousError>(
        Reporter{rank, world_size},
        "Python ranks, or C++ ranks with InitOptions::with_python, use the store "
        "of this run. If they are its "
        "ranks, set with_python on all C++ ranks; otherwise choose another MASTER_PORT");
  };
  if (!shared) {
    return [store, refuse, strange_keys = StrangeKeys(world_size)]() mutable {
      if (strange_keys.found(*store)) refuse();
    };
  }
  const auto theirs = store_of_python(c10::make_intrusive<c10d::PrefixStore>("default_pg", store), "", "cpu");
  // An earlier program may have left its keys there, so the ranks have some time to arrive.
  return [=, polls = 0, next = (rank + 1) % world_size]() mutable {
    const bool is_strange = theirs->check({"backend"}) || theirs->check({gloo_key(next)});
    polls = is_strange && !store->check({arrival_key(next)}) ? polls + 1 : 0;
    if (polls == kPollsOfSharedStore) refuse();
  };
}

namespace {

backends::BackendHandle connect_under_keys_of_python(const std::string& backend,
                                                     backends::BackendRequest request) {
  request.key = request.group_name;
  // PyTorch: "Backends that do not support reconfigure ignore this flag."
  request.enable_reconfigure = request.enable_reconfigure && backends::can_be_formed_again(backend, request);
  request.master_host = request.env.get("MASTER_ADDR").value_or(request.master_host);
  if (backend == "gloo" || backend == "nccl") {
    request.python.only_c10d_keys = true;
  } else if (!request.enable_reconfigure) {
    const int next = (request.rank + 1) % request.size;
    const RankTerms terms{.world_size = request.size, .backend = backend};
    store_barrier(*request.store, request.rank, terms, Deadline(request.timeout), [&] {
      if (!request.store->check({gloo_key(next)})) return;
      throw_error<RendezvousError>(
          request.reporter(), request.about({next}),
          "the backend is {} here and gloo on rank {}; give all ranks of the group the same backend", backend,
          next);
    });
    const auto map = read_host_map(*request.store, request.rank, request.size);
    std::vector<int> ranks(static_cast<std::size_t>(request.size));
    std::iota(ranks.begin(), ranks.end(), 0);
    request.hosts = map.hosts_of(ranks);
    request.one_host = map.all_on_one_host(ranks);
  }
  return backends::create_backend(backends::BackendSpec(backend), request);
}

backends::BackendHandle with_split(backends::BackendHandle handle, const std::string& backend,
                                   Create create) {
  if (auto* own = dynamic_cast<comm::FromC10d*>(handle.backend.get()))
    own->set_split(split_of(backend, create));
  return handle;
}

// The first group of the process is usually that of all ranks; its part if RANK says so.
void publish_python_rank(const backends::BackendRequest& request) {
  if (current_progress()) return;
  const auto job = [&](const char* name, int own) {
    return parse_number<int>(request.env.get(name).value_or("")).value_or(own);
  };
  publish_progress(job("RANK", request.rank), job("WORLD_SIZE", request.size), false);
}

}  // namespace

backends::BackendHandle create_with_python(const std::string& backend, backends::BackendRequest request) {
  return with_split(connect_under_keys_of_python(backend, std::move(request)), backend, create_with_python);
}

backends::BackendHandle create_for_python(const std::string& backend, backends::BackendRequest request) {
  auto handle = connect_under_keys_of_python(backend, request);
  const auto node_group = handle.node_group;
  handle = with_split(backends::in_place(std::move(handle), request), backend, create_for_python);
  if (auto* own = dynamic_cast<comm::FromC10d*>(handle.backend.get())) own->record_calls(node_group);
  publish_python_rank(request);
  return handle;
}

}  // namespace lockstep::rendezvous
