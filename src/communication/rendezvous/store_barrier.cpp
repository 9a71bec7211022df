// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/store_barrier.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <thread>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>

#include "base/host.h"
#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep::rendezvous {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr auto kLogWaitingAfter = 10s;
constexpr auto kLookForStrangers = 1s;
constexpr milliseconds kLongestPoll = 50ms;
constexpr milliseconds kLongestPollForSignals = 10ms;
constexpr int kMostThatPoll = 64;
constexpr std::size_t kMaxNames = 20;
constexpr const char* kCountKey = "arrived/count";
// The host map, when all ranks have arrived.
constexpr const char* kHostsKey = "arrived/hosts";
// The terms of the rank that arrived first.
constexpr const char* kTermsKey = "arrived/terms";
// Starts the host map's place in the store if the ranks cannot form a run; the reason follows.
constexpr std::string_view kRefused = "refused: ";
// How many ranks know it.
constexpr const char* kRefusedKey = "arrived/refused";
constexpr auto kRefusalLimit = 1s;

constexpr std::string_view kRank = "rank";

struct Term {
  std::string_view key;
  std::string_view event;
  std::string_view name;
  std::string value;
  std::string_view remedy;
};

// The version first: other terms may have a meaning of their own in another one.
std::array<Term, 4> list_of(const RankTerms& terms) {
  return {
      {{"lockstep", "run different versions of Lockstep", "Lockstep is", terms.lockstep,
        "build all programs of the run with the same version"},
       {"libtorch", "run different versions of LibTorch", "LibTorch is", terms.libtorch,
        "build all programs of the run with the same version"},
       {"world_size", "were started with different world sizes", "WORLD_SIZE is",
        std::to_string(terms.world_size), "give every rank the same WORLD_SIZE, or InitOptions::world_size"},
       {"backend", "ask for different backends", "the backend is", terms.backend,
        "give every rank the same InitOptions::backend"}}};
}

// The rest of the line that begins with `key`; "unknown" without one.
std::string_view value_of(std::string_view key, std::string_view text) {
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    if (line.starts_with(key) && line.substr(key.size()).starts_with(' ')) return line.substr(key.size() + 1);
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return "unknown";
}

}  // namespace

std::string to_text(const RankTerms& terms, int rank) {
  auto text = fmt::format("{} {}\n", kRank, rank);
  for (const auto& term : list_of(terms)) text += fmt::format("{} {}\n", term.key, term.value);
  return text;
}

std::string difference(const RankTerms& own, int rank, std::string_view first) {
  for (const auto& term : list_of(own)) {
    const auto other = value_of(term.key, first);
    if (other == term.value) continue;
    return fmt::format("the ranks {}: {} {} on rank {} and {} on rank {}; {}", term.event, term.name,
                       term.value, rank, other, value_of(kRank, first), term.remedy);
  }
  return "";
}

namespace {

std::vector<std::string> keys_of(int begin, int end) {
  std::vector<std::string> keys;
  for (int rank = begin; rank < end; ++rank) keys.push_back(arrival_key(rank));
  return keys;
}

// The host map or the refusal that was written first, which is the one of all ranks.
std::string decide(c10d::Store& store, const std::string& text) {
  const auto decided = store.compareSet(kHostsKey, "", text);
  store.set(kHostsKey, decided);  // compareSet() does not wake the ranks that wait
  return decided;
}

// Rank 0 serves the store, so it stays until the ranks that wait know the reason.
void share_refusal(c10d::Store& store, int rank) {
  constexpr std::int64_t kFewest = 2;  // the first rank may not have counted itself yet
  store.add(kRefusedKey, 1);
  const Deadline deadline(kRefusalLimit);
  const auto others_wait = [&] {
    return store.add(kRefusedKey, 0) < std::max(kFewest, store.add(kCountKey, 0));
  };
  while (rank == 0 && others_wait() && !deadline.expired()) std::this_thread::sleep_for(1ms);
}

[[noreturn]] void throw_refusal(c10d::Store& store, int rank, int world_size, std::string_view reason) {
  try {
    share_refusal(store, rank);
  } catch (const std::exception&) {
    // Rank 0 has left with the store. The reason is known without it.
  }
  throw_error<RendezvousError>(Reporter{rank, world_size}, "{}", reason);
}

// Throws RendezvousError on this rank, and in read_host_map() on the ranks that wait.
[[noreturn]] void refuse(c10d::Store& store, int rank, int world_size, std::string reason) {
  try {
    store.add(kCountKey, 1);  // rank 0 stays for the ranks that have been counted
    const auto decided = decide(store, std::string(kRefused) + reason);
    if (decided.starts_with(kRefused)) reason = decided.substr(kRefused.size());
  } catch (const std::exception&) {
    // As in throw_refusal().
  }
  throw_refusal(store, rank, world_size, reason);
}

// Ranks that differ from the first one do not set their arrival key, so no host map contains them.
void register_rank(c10d::Store& store, int rank, const RankTerms& terms) {
  auto reason = difference(terms, rank, store.compareSet(kTermsKey, "", to_text(terms, rank)));
  if (!reason.empty()) refuse(store, rank, terms.world_size, std::move(reason));
  store.set(arrival_key(rank), memory_identity());
  // A rank may have arrived twice, so ranks after the last one look for missing ones as well.
  if (store.add(kCountKey, 1) < terms.world_size) return;
  const auto keys = keys_of(0, terms.world_size);
  if (!store.check(keys)) return;
  std::vector<std::string> identities;
  for (const auto& bytes : store.multiGet(keys)) identities.emplace_back(bytes.begin(), bytes.end());
  decide(store, HostMap::of(identities).text());
}

// False when the limit has passed.
bool have_all_arrived(c10d::Store& store, milliseconds limit) {
  const Deadline deadline(limit);
  try {
    store.wait({kHostsKey}, std::max(limit, milliseconds(1)));
    return true;
  } catch (const std::exception&) {
    // Stores throw different exceptions on timeout, and some a little early.
    if (deadline.remaining() > std::min<milliseconds>(limit / 2, 100ms)) throw;
  }
  return store.check({kHostsKey});
}

// Appends ranks of begin .. end-1 that have not arrived, at most kMaxNames, with a few requests for each.
void find_missing(c10d::Store& store, int begin, int end, std::vector<int>& missing) {
  if (begin == end || missing.size() == kMaxNames || store.check(keys_of(begin, end))) return;
  if (end - begin == 1) {
    missing.push_back(begin);
    return;
  }
  const int middle = begin + (end - begin) / 2;
  find_missing(store, begin, middle, missing);
  find_missing(store, middle, end, missing);
}

// At most kMaxNames of the ranks that have not arrived, and "ranks 1, 2".
struct Missing {
  std::vector<int> ranks;
  std::string text;
};

Missing missing_ranks(c10d::Store& store, int world_size) {
  std::vector<int> missing;
  find_missing(store, 0, world_size, missing);
  if (missing.empty()) return {{}, "the last rank"};  // it has arrived meanwhile
  const auto more = world_size - store.add(kCountKey, 0) - static_cast<std::int64_t>(missing.size());
  auto text = fmt::format("rank{} {}{}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
                          missing.size() == kMaxNames && more > 0 ? fmt::format(" and {} more", more) : "");
  return {std::move(missing), std::move(text)};
}

}  // namespace

std::string arrival_key(int rank) { return fmt::format("arrived/{}", rank); }

void store_barrier(c10d::Store& store, int rank, const RankTerms& terms, const Deadline& deadline,
                   const std::function<void()>& find_strangers) {
  const int world_size = terms.world_size;
  const Reporter by{rank, world_size};
  Missing missing{{}, "other ranks"};
  const auto ask_store = [&](const auto& action) {
    try {
      return action();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw_error<RendezvousError>(by, ErrorDetails{.ranks = missing.ranks},
                                   "rank 0 gave up or died while {} had not arrived ({})", missing.text,
                                   first_line_of(error.what()));
    }
  };
  // c10d logs a warning when a short wait ends, and its wait does not end for a signal.
  const bool polls = wait_check != nullptr || (find_strangers && world_size <= kMostThatPoll);
  const auto longest_poll = wait_check != nullptr ? kLongestPollForSignals : kLongestPoll;
  Deadline next_look(kLookForStrangers);
  const auto have_come = [&](milliseconds limit) {
    if (!polls) return ask_store([&] { return have_all_arrived(store, limit); });
    const Deadline end(limit);
    for (milliseconds poll = 1ms; !end.expired(); poll = std::min(2 * poll, longest_poll)) {
      check_wait();
      if (ask_store([&] { return store.check({kHostsKey}); })) return true;
      if (find_strangers && next_look.expired()) {
        ask_store(find_strangers);
        next_look = Deadline(kLookForStrangers);
      }
      std::this_thread::sleep_for(poll);
    }
    return false;
  };
  // Missing ranks are looked up before rank 0 can time out, and rarely, because rank 0 serves the requests of
  // all ranks.
  auto wait_limit = std::min<milliseconds>(kLogWaitingAfter, deadline.remaining() / 2);
  bool said = false;
  ask_store([&] { register_rank(store, rank, terms); });
  while (!deadline.expired()) {
    if (have_come(std::min(wait_limit, deadline.remaining()))) return;
    if (find_strangers && !polls) ask_store(find_strangers);
    missing = ask_store([&] { return missing_ranks(store, world_size); });
    if (!said && wait_limit >= kLogWaitingAfter) {
      said = true;
      log(LogLevel::warning,
          fmt::format("{} is still waiting for {}", numbered_rank(rank, world_size), missing.text));
    }
    wait_limit *= 2;
  }
  throw_error<RendezvousError>(
      by, ErrorDetails{.ranks = missing.ranks},
      "{} did not arrive within {} ms. Were they started, each with its own RANK and "
      "with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE?",
      missing.text, deadline.timeout().count());
}

bool StrangeKeys::found(c10d::Store& store) {
  constexpr int kOwnKeys = 2;  // of the count and the terms
  auto count = store.getNumKeys() - kOwnKeys - store.add(kCountKey, 0);
  if (count > 0) {  // some of them may be ranks that have not been counted yet
    count = store.getNumKeys() - kOwnKeys;
    for (int rank = 0; rank < world_size_; ++rank) count -= store.check({arrival_key(rank)}) ? 1 : 0;
  }
  return count > 0 && count == std::exchange(last_, count);
}

void simulate_barrier(c10d::Store& store, int world_size) {
  store.set(kHostsKey, HostMap(std::vector<int>(static_cast<std::size_t>(world_size), 0)).text());
  store.add(kLeftKey, world_size - 1);
}

HostMap read_host_map(c10d::Store& store, int rank, int world_size) {
  const auto text = store.get_to_str(kHostsKey);
  if (text.starts_with(kRefused)) throw_refusal(store, rank, world_size, text.substr(kRefused.size()));
  return HostMap::from_text(text);
}

World world_of(const HostMap& hosts, const RankInfo& rank_info) {
  World world{.rank = rank_info.rank, .size = rank_info.world_size};
  if (rank_info.local_rank && rank_info.local_world_size) {
    world.local_rank = *rank_info.local_rank;
    world.local_size = *rank_info.local_world_size;
    return world;
  }
  world.local_size = hosts.local_size(world.rank);
  world.local_rank = rank_info.local_rank.value_or(hosts.local_rank(world.rank));
  return world;
}

namespace {

[[noreturn]] void refuse_text(std::string_view text) {
  throw_error<RendezvousError>(
      "the ranks' store has a malformed host map, \"{}\"; do all ranks run the same version of Lockstep?",
      text);
}

// Removes a number and its terminator from the front.
int take_number(std::string_view& rest, char end, std::string_view whole) {
  int value = 0;
  const auto [stop, code] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (code != std::errc() || value < 0) refuse_text(whole);
  rest.remove_prefix(static_cast<std::size_t>(stop - rest.data()));
  if (rest.empty() ? end != ',' : rest.front() != end) refuse_text(whole);
  if (!rest.empty()) rest.remove_prefix(1);
  return value;
}

}  // namespace

HostMap HostMap::of(const std::vector<std::string>& identities) {
  std::unordered_map<std::string, int> numbers;
  std::vector<int> hosts;
  hosts.reserve(identities.size());
  for (const auto& identity : identities) {
    hosts.push_back(numbers.emplace(identity, static_cast<int>(numbers.size())).first->second);
  }
  return HostMap(std::move(hosts));
}

std::string HostMap::text() const {
  std::string text;
  for (auto run = hosts_.begin(); run != hosts_.end();) {
    const auto end = std::find_if(run, hosts_.end(), [&](int host) { return host != *run; });
    fmt::format_to(std::back_inserter(text), "{}{}*{}", text.empty() ? "" : ",", std::distance(run, end),
                   *run);
    run = end;
  }
  return text;
}

HostMap HostMap::from_text(std::string_view text) {
  std::vector<int> hosts;
  for (auto rest = text; !rest.empty();) {
    const int count = take_number(rest, '*', text);
    const int host = take_number(rest, ',', text);
    hosts.insert(hosts.end(), static_cast<std::size_t>(count), host);
  }
  return HostMap(std::move(hosts));
}

bool HostMap::all_on_one_host(const std::vector<int>& ranks) const {
  return std::ranges::all_of(ranks, [&](int rank) { return host(rank) == host(ranks.front()); });
}

std::vector<int> HostMap::hosts_of(const std::vector<int>& ranks) const {
  std::vector<int> hosts;
  for (const int rank : ranks) hosts.push_back(host(rank));
  return hosts;
}

int HostMap::local_size(int rank) const { return static_cast<int>(std::ranges::count(hosts_, host(rank))); }

int HostMap::local_rank(int rank) const {
  return static_cast<int>(std::count(hosts_.begin(), hosts_.begin() + rank, host(rank)));
}

}  // namespace lockstep::rendezvous
