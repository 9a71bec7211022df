// SPDX-License-Identifier: BSD-3-Clause
#include "observe/run.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/throw_error.h"
#include "base/version.h"

namespace lockstep::observe {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 4> kLives{"alive", "stopped", "finished",
                                                 "dead"};  // in the order of Life

json to_json(const Call& call) {
  return {{"number", call.number},
          {"sequence", call.sequence},
          {"name", call.name},
          {"dtype", call.dtype},
          {"op", call.op},
          {"shape", call.shape},
          {"dims", call.dims},
          {"peer", call.peer},
          {"file", call.file},
          {"line", call.line},
          {"contents", call.contents},
          {"issued_at_ns", call.issued_at}};
}

json to_json(const Membership& member) {
  json calls = json::array();
  for (const auto& call : member.calls) calls.push_back(to_json(call));
  return {{"group", member.group},    {"rank", member.rank},           {"size", member.size},
          {"issued", member.issued},  {"completed", member.completed}, {"awaited", member.awaited},
          {"failed", member.failed},  {"backend", member.backend},     {"bytes", member.bytes},
          {"calls", std::move(calls)}};
}

json to_json(const Progress& progress) {
  json steps = json::array();
  for (const auto& step : progress.last)
    steps.push_back({{"number", step.number},
                     {"ended_at_ns", step.ended_at},
                     {"spent_ns", step.spent},
                     {"samples", step.samples}});
  json memory = json::array();
  for (const auto& sample : progress.memory)
    memory.push_back({{"at_ns", sample.at}, {"resident", sample.resident}, {"shared", sample.shared}});
  return {{"size", progress.size},
          {"began_at_ns", progress.began_at},
          {"phase", kPhaseNames.at(static_cast<std::size_t>(progress.phase))},
          {"phase_since_ns", progress.phase_since},
          {"phases", kPhaseNames},
          {"spent_ns", progress.spent},
          {"steps", progress.steps},
          {"samples", progress.samples},
          {"epoch", progress.epoch},
          {"gathered", progress.gathered},
          {"last_steps", std::move(steps)},
          {"memory", std::move(memory)},
          {"numbers", progress.numbers},
          {"reading", progress.reading},
          {"reading_since_ns", progress.reading_since}};
}

json to_json(const Rank& rank) {
  json groups = json::array();
  for (const auto& member : rank.groups) groups.push_back(to_json(member));
  json value{{"rank", rank.rank},           {"pid", rank.pid},
             {"thread", rank.thread},       {"life", kLives.at(static_cast<std::size_t>(rank.life))},
             {"activity", rank.activity},   {"restarts", rank.restarts},
             {"groups", std::move(groups)}, {"progress", rank.progress ? to_json(*rank.progress) : json()}};
  if (!rank.host.empty()) value["host"] = rank.host;
  return value;
}

Call call_from(const json& value) {
  Call call;
  value.at("number").get_to(call.number);
  value.at("sequence").get_to(call.sequence);
  value.at("name").get_to(call.name);
  value.at("dtype").get_to(call.dtype);
  value.at("op").get_to(call.op);
  value.at("shape").get_to(call.shape);
  value.at("dims").get_to(call.dims);
  value.at("peer").get_to(call.peer);
  value.at("file").get_to(call.file);
  value.at("line").get_to(call.line);
  value.at("contents").get_to(call.contents);
  value.at("issued_at_ns").get_to(call.issued_at);
  return call;
}

Membership membership_from(const json& value) {
  Membership member;
  value.at("group").get_to(member.group);
  value.at("rank").get_to(member.rank);
  value.at("size").get_to(member.size);
  value.at("issued").get_to(member.issued);
  value.at("completed").get_to(member.completed);
  value.at("awaited").get_to(member.awaited);
  value.at("failed").get_to(member.failed);
  member.backend = value.value("backend", "");  // not in format 1, like the next one
  member.bytes = value.value("bytes", std::uint64_t{0});
  for (const auto& call : value.at("calls")) member.calls.push_back(call_from(call));
  return member;
}

// The place of a name in a list of names.
std::size_t place_of(std::span<const std::string_view> names, const json& value, std::string_view what) {
  const auto name = value.get<std::string>();
  const auto place = std::ranges::find(names, name);
  if (place == names.end()) throw_error<Error>("the {} \"{}\" is unknown", what, name);
  return static_cast<std::size_t>(place - names.begin());
}

Progress progress_from(const json& value) {
  Progress progress;
  value.at("size").get_to(progress.size);
  value.at("began_at_ns").get_to(progress.began_at);
  progress.phase = static_cast<Phase>(place_of(kPhaseNames, value.at("phase"), "phase"));
  value.at("phase_since_ns").get_to(progress.phase_since);
  value.at("spent_ns").get_to(progress.spent);
  value.at("steps").get_to(progress.steps);
  value.at("samples").get_to(progress.samples);
  value.at("epoch").get_to(progress.epoch);
  value.at("gathered").get_to(progress.gathered);
  for (const auto& step : value.at("last_steps"))
    progress.last.push_back({.number = step.at("number"),
                             .ended_at = step.at("ended_at_ns"),
                             .spent = step.at("spent_ns"),
                             .samples = step.at("samples")});
  for (const auto& sample : value.at("memory"))
    progress.memory.push_back(
        {.at = sample.at("at_ns"), .resident = sample.at("resident"), .shared = sample.at("shared")});
  value.at("numbers").get_to(progress.numbers);
  value.at("reading").get_to(progress.reading);
  value.at("reading_since_ns").get_to(progress.reading_since);
  return progress;
}

Rank rank_from(const json& value) {
  Rank rank;
  value.at("rank").get_to(rank.rank);
  value.at("pid").get_to(rank.pid);
  value.at("thread").get_to(rank.thread);
  rank.life = static_cast<Life>(place_of(kLives, value.at("life"), "life"));
  value.at("activity").get_to(rank.activity);
  rank.restarts = value.value("restarts", 0);  // not in format 1, like the progress
  rank.host = value.value("host", "");         // of several hosts only
  for (const auto& member : value.at("groups")) rank.groups.push_back(membership_from(member));
  const auto progress = value.find("progress");
  if (progress != value.end() && !progress->is_null()) rank.progress = progress_from(*progress);
  return rank;
}

}  // namespace

std::string Call::describe() const {
  std::string text = fmt::format("{} #{}", name, sequence);
  if (!dtype.empty()) {
    text += fmt::format(" of {}[{}{}]", dtype, fmt::join(shape, ", "),
                        dims > static_cast<int>(shape.size()) ? ", ..." : "");
  }
  if (is_message() && peer >= 0) text += fmt::format(" {} rank {}", name == "send" ? "to" : "from", peer);
  if (line != 0) text += fmt::format(" at {}:{}", file, line);
  return contents.empty() ? text : fmt::format("{} ({})", text, contents);
}

const Call* Membership::find(std::uint64_t number) const {
  const auto found = std::ranges::find(calls, number, &Call::number);
  return found == calls.end() ? nullptr : &*found;
}

const Call* Membership::collective(std::uint64_t sequence) const {
  const auto found = std::ranges::find_if(
      calls, [&](const Call& call) { return !call.is_message() && call.sequence == sequence; });
  return found == calls.end() ? nullptr : &*found;
}

std::uint64_t Membership::last_collective() const {
  std::uint64_t last = 0;
  for (const auto& call : calls) {
    if (!call.is_message()) last = std::max(last, call.sequence);
  }
  const bool forgot_calls = !calls.empty() && calls.front().number > 1;
  return last == 0 && forgot_calls ? std::numeric_limits<std::uint64_t>::max() : last;
}

const Call* Membership::unfinished() const {
  if (awaited != 0) {
    if (const auto* call = find(awaited)) return call;
    // Behind the awaited call, which is no longer kept, so that the rank waits for it too.
    return !calls.empty() && calls.front().number > awaited ? &calls.front() : nullptr;
  }
  return failed != 0 && failed == issued ? find(failed) : nullptr;
}

std::string Rank::describe() const {
  return fmt::format("rank {} ({}pid {}{}{})", rank,
                     thread == pid ? "" : fmt::format("thread {} of ", thread), pid,
                     host.empty() ? "" : " on ", host);
}

bool Run::is_whole() const {
  const auto known = std::ranges::find_if(ranks, [](const Rank& rank) { return rank.progress.has_value(); });
  return known != ranks.end() && ranks.size() == static_cast<std::size_t>(known->progress->size);
}

json to_json(const Run& run) {
  json ranks = json::array();
  for (const auto& rank : run.ranks) ranks.push_back(to_json(rank));
  json value{{kFormatField, formats::kRecorderFiles.number},
             {"run", run.id},
             {"host", run.host},
             {"taken_at_ns", run.taken_at},
             {"ranks", std::move(ranks)}};
  for (const auto& host : run.hosts)
    value["hosts"].push_back({{"name", host.name}, {"problem", host.problem}});
  return value;
}

Run run_from_json(const json& value) {
  try {
    const auto reason =
        reason_not_to_read(formats::kRecorderFiles, value.at(kFormatField).get<std::uint64_t>());
    if (!reason.empty()) throw Error(reason);
    Run run;
    value.at("run").get_to(run.id);
    value.at("host").get_to(run.host);
    value.at("taken_at_ns").get_to(run.taken_at);
    for (const auto& rank : value.at("ranks")) run.ranks.push_back(rank_from(rank));
    return run;
  } catch (const json::exception&) {
    throw Error("not a recorder file of Lockstep, or a damaged one");
  }
}

}  // namespace lockstep::observe
