// SPDX-License-Identifier: BSD-3-Clause
#include "observe/report/page.h"

#include <algorithm>
#include <string_view>

#include <nlohmann/json.hpp>

namespace lockstep::observe {
namespace {

using nlohmann::json;

// Columns of a table, as differences to the row before: shorter, and exact in sums.
class Column {
 public:
  void add(std::int64_t value) {
    values_.push_back(value - last_);
    last_ = value;
  }
  json take() { return std::move(values_); }

 private:
  json values_ = json::array();
  std::int64_t last_ = 0;
};

std::int64_t micros(std::int64_t nanoseconds) { return nanoseconds / 1000; }

json points_of(const Track& track, std::int64_t began) {
  Column at;
  Column steps;
  Column samples;
  std::array<Column, kPhases> spent;
  json shortest = json::array();
  json longest = json::array();
  for (const auto& point : track.points.items()) {
    at.add(micros(point.at - began));
    steps.add(static_cast<std::int64_t>(point.steps));
    samples.add(static_cast<std::int64_t>(point.samples));
    for (std::size_t i = 0; i < kPhases; ++i) spent.at(i).add(micros(point.spent.at(i)));
    shortest.push_back(micros(point.shortest));
    longest.push_back(micros(point.longest));
  }
  json phases = json::array();
  for (auto& column : spent) phases.push_back(column.take());
  return {{"at", at.take()},
          {"steps", steps.take()},
          {"samples", samples.take()},
          {"spent", std::move(phases)},
          {"shortest", std::move(shortest)},
          {"longest", std::move(longest)},
          {"width", track.points.width()}};
}

json memory_of(const Track& track, std::int64_t began) {
  Column at;
  json resident = json::array();
  json gathered = json::array();
  for (const auto& point : track.memory.items()) {
    at.add(micros(point.at - began));
    resident.push_back(point.resident);
    gathered.push_back(point.gathered);
  }
  return {{"at", at.take()}, {"resident", std::move(resident)}, {"gathered", std::move(gathered)}};
}

json number_of(const Thinned<NumberPoint>& number, std::int64_t began) {
  Column at;
  Column step;
  json least = json::array();
  json mean = json::array();
  json most = json::array();
  std::uint64_t not_finite = 0;
  for (const auto& point : number.items()) {
    at.add(micros(point.at - began));
    step.add(static_cast<std::int64_t>(point.step));
    const bool known = point.count != 0;
    least.push_back(known ? json(point.least) : json());
    mean.push_back(known ? json(point.sum / static_cast<double>(point.count)) : json());
    most.push_back(known ? json(point.most) : json());
    not_finite += point.not_finite;
  }
  return {{"at", at.take()},         {"step", step.take()},     {"least", std::move(least)},
          {"mean", std::move(mean)}, {"most", std::move(most)}, {"not_finite", not_finite},
          {"width", number.width()}};
}

json late_of(const Track& track, std::int64_t began) {
  Column at;
  json calls = json::array();
  json mean = json::array();
  json most = json::array();
  for (const auto& point : track.late.items()) {
    at.add(micros(point.at - began));
    calls.push_back(point.calls);
    mean.push_back(micros(point.sum / static_cast<std::int64_t>(std::max<std::uint64_t>(point.calls, 1))));
    most.push_back(micros(point.most));
  }
  return {
      {"at", at.take()}, {"calls", std::move(calls)}, {"mean", std::move(mean)}, {"most", std::move(most)}};
}

json track_of(const Track& track, std::int64_t began) {
  json numbers = json::array();
  for (const auto& [name, number] : track.numbers) {
    auto value = number_of(number, began);
    value["name"] = name;
    numbers.push_back(std::move(value));
  }
  json traffic = json::array();
  for (const auto& [group, use] : track.traffic)
    traffic.push_back({{"group", group}, {"backend", use.first}, {"bytes", use.second}});
  return {{"rank", track.rank},
          {"pid", track.pid},
          {"thread", track.thread},
          {"restarts", track.restarts},
          {"first_seen", micros(track.first_seen - began)},
          {"last_seen", micros(track.last_seen - began)},
          {"steps", track.steps},
          {"unseen_steps", track.unseen_steps},
          {"last_arrivals", track.last_arrivals},
          {"points", points_of(track, began)},
          {"memory", memory_of(track, began)},
          {"numbers", std::move(numbers)},
          {"late", late_of(track, began)},
          {"traffic", std::move(traffic)}};
}

json facts_json(const Facts& facts) {
  json rows = json::array();
  for (const auto& [name, value] : facts) rows.push_back({name, value});
  return rows;
}

json ends_of(const Report& report) {
  json ends = json::array();
  for (const auto& end : report.ends) {
    ends.push_back({{"rank", end.rank},
                    {"pid", end.pid},
                    {"restarts", end.restarts},
                    {"at", static_cast<std::int64_t>((end.time - report.began) * 1e6)},
                    {"text", end.text},
                    {"failed", end.failed},
                    {"was_stopped", end.was_stopped}});
  }
  return ends;
}

json attempts_of(const Report& report) {
  json attempts = json::array();
  for (const auto& attempt : report.attempts) {
    attempts.push_back({{"restarts", attempt.restarts},
                        {"at", static_cast<std::int64_t>((attempt.time - report.began) * 1e6)},
                        {"ranks", attempt.ranks},
                        {"failure", attempt.failure}});
  }
  return attempts;
}

// How many attempts had begun so many seconds after the beginning.
std::ptrdiff_t attempts_until(const Report& report, double seconds) {
  return std::ranges::count_if(
      report.attempts, [&](const Attempt& attempt) { return attempt.time - report.began <= seconds; });
}

// Ranks that end without an error are no fault, though others see them as gone.
bool is_fault(const Report& report, const Fault& fault) {
  if (fault.verdict.cause != Cause::dead) return true;
  const auto attempt = attempts_until(report, static_cast<double>(fault.first - report.began_at) / 1e9);
  return !std::ranges::all_of(fault.verdict.ranks, [&](int rank) {
    return std::ranges::any_of(report.ends, [&](const RankEnd& end) {
      return end.rank == rank && attempts_until(report, end.time - report.began) == attempt && !end.failed;
    });
  });
}

json faults_of(const Report& report) {
  json faults = json::array();
  for (const auto& fault : report.history.faults()) {
    if (!is_fault(report, fault)) continue;
    faults.push_back({{"first", micros(fault.first - report.began_at)},
                      {"last", micros(fault.last - report.began_at)},
                      {"restarts", fault.restarts},
                      {"cause", name_of(fault.verdict.cause)},
                      {"ranks", fault.verdict.ranks},
                      {"text", fault.verdict.text},
                      {"stacks", fault.stacks}});
  }
  return faults;
}

json arrivals_of(const Report& report) {
  json worst = json::array();
  auto late = report.history.late_arrivals();
  std::ranges::sort(late, std::greater(), &LateArrival::late);
  for (const auto& arrival : late) {
    worst.push_back({{"at", micros(arrival.at - report.began_at)},
                     {"late", micros(arrival.late)},
                     {"rank", arrival.rank},
                     {"call", arrival.call},
                     {"group", arrival.group}});
  }
  return {{"seen", report.history.collectives_seen()},
          {"collectives", report.history.collectives()},
          {"worst", std::move(worst)}};
}

std::string replaced(std::string_view text, std::string_view mark, std::string_view replacement) {
  const auto at = text.find(mark);
  return std::string(text.substr(0, at)).append(replacement).append(text.substr(at + mark.size()));
}

}  // namespace

json to_json(const Report& report) {
  const auto& history = report.history;
  json tracks = json::array();
  for (const auto& track : history.tracks()) tracks.push_back(track_of(track, report.began_at));
  return {{"title", report.title},
          {"outcome", report.outcome},
          {"failed", report.failed},
          {"began", report.began},
          {"seconds", report.seconds},
          {"phases", kPhaseNames},
          {"tracks", std::move(tracks)},
          {"attempts", attempts_of(report)},
          {"ends", ends_of(report)},
          {"faults", faults_of(report)},
          {"arrivals", arrivals_of(report)},
          {"command", report.command},
          {"facts", facts_json(report.facts)},
          {"environment", facts_json(report.environment)},
          {"sampling",
           {{"period", report.period},
            {"looks", report.looks},
            {"processor_seconds", report.processor_seconds},
            {"dropped_tracks", history.dropped_tracks()},
            {"dropped_faults", history.dropped_faults()},
            {"dropped_numbers", history.dropped_numbers()}}}};
}

std::string json_for_script(const json& value) {
  // Only ASCII, with a replacement for bytes that are not UTF-8.
  std::string text;
  for (const char c : value.dump(-1, ' ', true, json::error_handler_t::replace)) {
    switch (c) {
      case '<':
        text += "\\u003c";
        break;
      case '>':
        text += "\\u003e";
        break;
      case '&':
        text += "\\u0026";
        break;
      case '\x7f':
        text += "\\u007f";
        break;
      default:
        text += c;
    }
  }
  return text;
}

std::string page_of(const Report& report) {
  return replaced(kPageTemplate, "@DATA@", json_for_script(to_json(report)));
}

}  // namespace lockstep::observe
