// SPDX-License-Identifier: BSD-3-Clause
#include "launch/messages.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "launch/json.h"

namespace lockstep::launch {
namespace {

using Json = nlohmann::json;

// Changes when a launcher could misunderstand another's messages.
constexpr int kProtocol = 1;

Json json_of(const Reserved& said) {
  return {{"kind", "reserved"}, {"address", said.address}, {"port", said.port}};
}
Json json_of(const Failed& said) {
  return {{"kind", "failed"},
          {"attempt", said.attempt},
          {"consequence", said.consequence},
          {"report", to_json(said.report)}};
}
Json json_of(const Stopped& said) { return {{"kind", "stopped"}, {"attempt", said.attempt}}; }
Json json_of(const Finished& said) { return {{"kind", "finished"}, {"attempt", said.attempt}}; }
Json json_of(const Leaving& said) { return {{"kind", "leaving"}, {"reason", said.reason}}; }
Json json_of(const Welcome& /*said*/) { return {{"kind", "welcome"}}; }
Json json_of(const Reserve& /*said*/) { return {{"kind", "reserve"}}; }
Json json_of(const Stop& said) {
  return {{"kind", "stop"}, {"attempt", said.attempt}, {"notice", said.notice}};
}
Json json_of(const Refused& said) { return {{"kind", "refused"}, {"reason", said.reason}}; }
Json json_of(const End& said) {
  return {{"kind", "end"}, {"failure", said.failure ? to_json(*said.failure) : Json(nullptr)}};
}
Json json_of(const Start& said) {
  const NodePlace& place = said.place;
  return {{"kind", "start"},
          {"attempt", place.attempt},
          {"restarts", place.restarts},
          {"node_rank", place.node_rank},
          {"nodes", place.nodes},
          {"first_rank", place.first_rank},
          {"world_size", place.world_size},
          {"first_role_rank", place.first_role_rank},
          {"role_world_size", place.role_world_size},
          {"master_addr", place.master_addr},
          {"master_port", place.master_port}};
}

NodePlace place_from(const Json& json) {
  return {.attempt = json.at("attempt"),
          .restarts = json.at("restarts"),
          .node_rank = json.at("node_rank"),
          .nodes = json.at("nodes"),
          .first_rank = json.at("first_rank"),
          .world_size = json.at("world_size"),
          .first_role_rank = json.at("first_role_rank"),
          .role_world_size = json.at("role_world_size"),
          .master_addr = json.at("master_addr"),
          .master_port = json.at("master_port")};
}

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// What another program sends to this port is no reason to fall over.
template <typename Read>
auto decode(const std::string& line, const Read& read) {
  try {
    return read(Json::parse(line));
  } catch (const Json::exception& error) {
    throw LaunchError(
        fmt::format("this is no message of a launcher: \"{}\" ({})", line.substr(0, 80), error.what()));
  }
}

[[noreturn]] void refuse_kind(const std::string& kind) {
  throw LaunchError(fmt::format("a launcher's message of kind \"{}\" is not known here", kind));
}

FromNode from_node(const Json& json) {
  const std::string kind = json.at("kind");
  if (kind == "reserved") return Reserved{.address = json.at("address"), .port = json.at("port")};
  if (kind == "failed") {
    return Failed{.attempt = json.at("attempt"),
                  .consequence = json.at("consequence"),
                  .report = failure_report_from(json.at("report"))};
  }
  if (kind == "stopped") return Stopped{json.at("attempt")};
  if (kind == "finished") return Finished{json.at("attempt")};
  if (kind == "leaving") return Leaving{json.at("reason")};
  refuse_kind(kind);
}

ToNode to_node(const Json& json) {
  const std::string kind = json.at("kind");
  if (kind == "welcome") return Welcome{};
  if (kind == "reserve") return Reserve{};
  if (kind == "start") return Start{place_from(json)};
  if (kind == "stop") return Stop{.attempt = json.at("attempt"), .notice = json.at("notice")};
  if (kind == "refused") return Refused{json.at("reason")};
  if (kind != "end") refuse_kind(kind);
  End end;
  if (!json.at("failure").is_null()) end.failure = failure_report_from(json.at("failure"));
  return end;
}

}  // namespace

std::string encode(const Hello& hello) {
  const NodeInfo& node = hello.node;
  return line_of({{"kind", "hello"},
                  {"protocol", kProtocol},
                  {"run_id", hello.run_id},
                  {"node_rank", node.node_rank ? Json(*node.node_rank) : Json(nullptr)},
                  {"ranks", node.ranks},
                  {"role", node.role},
                  {"host", node.host},
                  {"is_meeting_point", node.is_meeting_point}});
}

Hello decode_hello(const std::string& line) {
  return decode(line, [](const Json& json) {
    if (json.at("kind") != "hello") refuse_kind(json.at("kind"));
    if (json.at("protocol") != kProtocol) {
      throw LaunchError("the launchers are of different versions of Lockstep; use one version on all nodes");
    }
    Hello hello{.run_id = json.at("run_id"),
                .node = {.ranks = json.at("ranks"),
                         .role = json.at("role"),
                         .host = json.at("host"),
                         .is_meeting_point = json.at("is_meeting_point")}};
    if (!json.at("node_rank").is_null()) hello.node.node_rank = json.at("node_rank").get<int>();
    constexpr int most = 1'000'000;
    if (hello.node.ranks < 1 || hello.node.ranks > most || hello.node.node_rank.value_or(0) < 0) {
      throw LaunchError("a launcher's greeting has numbers that cannot be");
    }
    return hello;
  });
}

std::string encode(const FromNode& message) {
  return line_of(std::visit([](const auto& said) { return json_of(said); }, message));
}
FromNode decode_from_node(const std::string& line) { return decode(line, from_node); }

std::string encode(const ToNode& message) {
  return line_of(std::visit([](const auto& said) { return json_of(said); }, message));
}
ToNode decode_to_node(const std::string& line) { return decode(line, to_node); }

}  // namespace lockstep::launch
