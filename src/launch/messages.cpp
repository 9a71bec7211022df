// SPDX-License-Identifier: BSD-3-Clause
#include "launch/messages.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "launch/failure_report.h"

namespace lockstep::launch {
namespace {

using Json = nlohmann::json;

// Incremented with every incompatible change.
constexpr int kProtocol = 2;

Json json_of(const Reserved& message) {
  return {{"kind", "reserved"}, {"address", message.address}, {"port", message.port}};
}
Json json_of(const Failed& message) {
  return {{"kind", "failed"},
          {"attempt", message.attempt},
          {"consequence", message.consequence},
          {"report", to_json(message.report)}};
}
Json json_of(const Stopped& message) { return {{"kind", "stopped"}, {"attempt", message.attempt}}; }
Json json_of(const Finished& message) { return {{"kind", "finished"}, {"attempt", message.attempt}}; }
Json json_of(const Leaving& message) { return {{"kind", "leaving"}, {"reason", message.reason}}; }
Json json_of(const Welcome& /*message*/) { return {{"kind", "welcome"}}; }
Json json_of(const Reserve& /*message*/) { return {{"kind", "reserve"}}; }
Json json_of(const Stop& message) {
  return {{"kind", "stop"}, {"attempt", message.attempt}, {"notice", message.notice}};
}
Json json_of(const Refused& message) { return {{"kind", "refused"}, {"reason", message.reason}}; }
Json json_of(const End& message) {
  return {{"kind", "end"}, {"failure", message.failure ? to_json(*message.failure) : Json(nullptr)}};
}
Json json_of(const Start& message) {
  const NodeAssignment& assignment = message.assignment;
  return {{"kind", "start"},
          {"attempt", assignment.attempt},
          {"restarts", assignment.restarts},
          {"node_rank", assignment.node_rank},
          {"nodes", assignment.nodes},
          {"first_rank", assignment.first_rank},
          {"world_size", assignment.world_size},
          {"first_role_rank", assignment.first_role_rank},
          {"role_world_size", assignment.role_world_size},
          {"master_addr", assignment.master_addr},
          {"master_port", assignment.master_port}};
}

NodeAssignment assignment_from(const Json& json) {
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

// Another program may send anything to this port.
template <typename Read>
auto decode(const std::string& line, const Read& read) {
  try {
    return read(Json::parse(line));
  } catch (const Json::exception& error) {
    throw LaunchError(
        fmt::format("this is not a message of a launcher: \"{}\" ({})", line.substr(0, 80), error.what()));
  }
}

[[noreturn]] void refuse_kind(const std::string& kind) {
  throw LaunchError(fmt::format("unknown kind of message: \"{}\"", kind));
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
  if (kind == "start") return Start{assignment_from(json)};
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
                  {"is_host", node.is_host}});
}

Hello decode_hello(const std::string& line) {
  return decode(line, [](const Json& json) {
    if (json.at("kind") != "hello") refuse_kind(json.at("kind"));
    if (json.at("protocol") != kProtocol) {
      throw LaunchError(
          "the launchers have different versions of Lockstep; use the same version on all nodes");
    }
    Hello hello{.run_id = json.at("run_id"),
                .node = {.ranks = json.at("ranks"),
                         .role = json.at("role"),
                         .host = json.at("host"),
                         .is_host = json.at("is_host")}};
    if (!json.at("node_rank").is_null()) hello.node.node_rank = json.at("node_rank").get<int>();
    constexpr int most = 1'000'000;
    if (hello.node.ranks < 1 || hello.node.ranks > most || hello.node.node_rank.value_or(0) < 0) {
      throw LaunchError("a launcher's first message has numbers that are out of range");
    }
    return hello;
  });
}

std::string encode(const FromNode& message) {
  return line_of(std::visit([](const auto& content) { return json_of(content); }, message));
}
FromNode decode_from_node(const std::string& line) { return decode(line, from_node); }

std::string encode(const ToNode& message) {
  return line_of(std::visit([](const auto& content) { return json_of(content); }, message));
}
ToNode decode_to_node(const std::string& line) { return decode(line, to_node); }

}  // namespace lockstep::launch
