// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

// Traces of several ranks, read from their files.
namespace lockstep::testing {

struct Slice {
  std::string name, track;
  double begin, end;
  std::string call = {};
};

struct FlowPoint {
  std::string phase;
  int rank;
  std::pair<int, int> track;
  double time;
};

struct ReadTrace {
  explicit ReadTrace(const std::string& file) {
    std::ifstream stream(file);
    const auto file_contents = nlohmann::json::parse(stream);
    clocks = file_contents.at("otherData").at("clocks");
    const auto& events = file_contents.at("traceEvents");
    std::map<std::pair<int, int>, std::string> tracks;
    for (const auto& event : events) {
      if (event.at("name") == "thread_name")
        tracks[{event.at("pid"), event.at("tid")}] = event["args"]["name"];
      if (event.at("name") == "process_name") processes.insert(event["args"]["name"]);
    }
    for (const auto& event : events) {
      if (event.at("ph") == "M") continue;
      const double begin = event.at("ts");
      const int rank = event.at("pid");
      const std::pair<int, int> track{rank, event.at("tid")};
      if (event.at("ph") == "X") {
        const auto call = event.contains("args") ? std::string(event["args"].at("call")) : "";
        slices[rank].push_back(
            {event.at("name"), tracks.at(track), begin, begin + double(event["dur"]), call});
        if (!call.empty()) calls[{track, begin}] = call;
      } else {
        EXPECT_EQ(event.at("bp"), "e");
        flows[event.at("id")].push_back({event.at("ph"), rank, track, begin});
      }
    }
  }

  std::vector<Slice> named(int rank, const std::string& prefix) const {
    std::vector<Slice> found;
    for (const auto& slice : slices.at(rank))
      if (slice.name.starts_with(prefix)) found.push_back(slice);
    return found;
  }

  std::set<std::string> processes;
  nlohmann::json clocks;
  std::map<std::pair<std::pair<int, int>, double>, std::string> calls;  // by track and begin
  std::map<int, std::vector<FlowPoint>> flows;
  std::map<int, std::vector<Slice>> slices;
};

// With LOCKSTEP_TRACE_FOLDER=DIR the trace is copied there; `scripts/nightly.sh traces` opens it in Perfetto.
inline void offer_trace(const std::string& file) {
  const char* const folder = std::getenv("LOCKSTEP_TRACE_FOLDER");
  if (folder != nullptr)
    std::filesystem::copy_file(file, std::filesystem::path(folder) / std::filesystem::path(file).filename());
}

// In the folder of the test that has started the rank.
inline std::string profile_file(const std::string& name) {
  return std::getenv("PROFILE_FOLDER") + ("/" + name);
}

// Each call has one flow: from the rank that began it first through the others in order, at the begin of their
// slices.
inline void expect_flows(const ReadTrace& trace, std::size_t ranks) {
  std::set<std::string> connected;
  for (const auto& [id, points] : trace.flows) {
    ASSERT_EQ(points.size(), ranks) << id;
    std::set<int> seen;
    const auto first = trace.calls.find({points.front().track, points.front().time});
    ASSERT_NE(first, trace.calls.end()) << id;
    EXPECT_TRUE(connected.insert(first->second).second) << first->second;
    for (std::size_t i = 0; i < ranks; ++i) {
      const auto& point = points[i];
      EXPECT_EQ(point.phase, i == 0 ? "s" : i + 1 == ranks ? "f" : "t");
      EXPECT_TRUE(seen.insert(point.rank).second) << first->second;
      EXPECT_GE(point.time, points[i == 0 ? 0 : i - 1].time);
      const auto slice = trace.calls.find({point.track, point.time});
      ASSERT_NE(slice, trace.calls.end()) << first->second;
      EXPECT_EQ(slice->second, first->second);
    }
  }
  for (const auto& [where, call] : trace.calls) EXPECT_TRUE(connected.contains(call)) << call;
}

}  // namespace lockstep::testing
