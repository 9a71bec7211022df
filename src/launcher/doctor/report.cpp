// SPDX-License-Identifier: BSD-3-Clause
#include "doctor/report.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/throw_error.h"

namespace lockstep::doctor {
namespace {

constexpr std::array<const char*, 3> kSeverities{"ok", "warning", "problem"};

const char* name_of(Severity severity) { return kSeverities.at(static_cast<std::size_t>(severity)); }

Severity severity_of(const std::string& name) {
  const auto* found = std::ranges::find(kSeverities, name);
  if (found == kSeverities.end()) throw_error<Error>("\"{}\" is not a severity", name);
  return static_cast<Severity>(found - kSeverities.begin());
}

std::string counted(int number, const std::string& noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

nlohmann::json peer_json(const Peer& peer) {
  nlohmann::json document{
      {"host", peer.host}, {"error", peer.error}, {"uncertainty_seconds", peer.uncertainty}};
  document["offset_seconds"] = peer.offset ? nlohmann::json(*peer.offset) : nlohmann::json();
  return document;
}

Peer parse_peer(const nlohmann::json& document) {
  Peer peer{.host = document.at("host"), .error = document.at("error")};
  peer.uncertainty = document.at("uncertainty_seconds");
  if (!document.at("offset_seconds").is_null()) peer.offset = document.at("offset_seconds").get<double>();
  return peer;
}

}  // namespace

Report make_report(const Facts& facts, std::vector<Peer> peers, Findings findings) {
  const auto& devices = facts.devices;
  return {.host = facts.network.host_name,
          .lockstep = facts.version,
          .libtorch = facts.libtorch.version,
          .cores = devices.processor.usable,
          .memory = devices.memory.cgroup_limit.value_or(devices.memory.total),
          .gpus = static_cast<int>(devices.gpus.gpus.size()),
          .peers = std::move(peers),
          .findings = std::move(findings)};
}

int count(const Findings& findings, Severity severity) {
  return static_cast<int>(std::ranges::count(findings, severity, &Finding::severity));
}

std::string summary(const Findings& findings) {
  return fmt::format("{}, {}, {} ok", counted(count(findings, Severity::problem), "problem"),
                     counted(count(findings, Severity::warning), "warning"), count(findings, Severity::ok));
}

std::string findings_text(const Findings& findings, bool all, const std::string& indent) {
  std::size_t width = 0;
  for (const auto& finding : findings) width = std::max(width, finding.check.size());
  std::string text;
  for (const auto& finding : findings) {
    if (!all && finding.severity == Severity::ok) continue;
    text += fmt::format("{}{:<8} {:<{}}  {}\n", indent, name_of(finding.severity), finding.check, width,
                        finding.text);
    if (!finding.remedy.empty()) {
      text += fmt::format("{}{:<8} {:<{}}  -> {}\n", indent, "", "", width, finding.remedy);
    }
  }
  return text;
}

std::string report_text(const Report& report) {
  return fmt::format("{}: Lockstep {}\n{}{}\n", report.host, report.lockstep,
                     findings_text(report.findings, /*all=*/true), summary(report.findings));
}

nlohmann::json findings_json(const Findings& findings) {
  auto list = nlohmann::json::array();
  for (const auto& finding : findings) {
    list.push_back({{"check", finding.check},
                    {"severity", name_of(finding.severity)},
                    {"text", finding.text},
                    {"remedy", finding.remedy}});
  }
  return list;
}

nlohmann::json report_json(const Report& report) {
  auto peers = nlohmann::json::array();
  for (const auto& peer : report.peers) peers.push_back(peer_json(peer));
  return {{"host", report.host},
          {"lockstep", report.lockstep},
          {"libtorch", report.libtorch},
          {"cores", report.cores},
          {"memory_bytes", report.memory},
          {"gpus", report.gpus},
          {"peers", peers},
          {"findings", findings_json(report.findings)},
          {"problems", count(report.findings, Severity::problem)},
          {"warnings", count(report.findings, Severity::warning)}};
}

Report parse_report(const nlohmann::json& document) {
  Report report{.host = document.at("host"),
                .lockstep = document.at("lockstep"),
                .libtorch = document.at("libtorch"),
                .cores = document.at("cores"),
                .memory = document.at("memory_bytes"),
                .gpus = document.at("gpus")};
  for (const auto& peer : document.at("peers")) report.peers.push_back(parse_peer(peer));
  for (const auto& entry : document.at("findings")) {
    report.findings.push_back({.check = entry.at("check"),
                               .severity = severity_of(entry.at("severity")),
                               .text = entry.at("text"),
                               .remedy = entry.at("remedy")});
  }
  return report;
}

}  // namespace lockstep::doctor
