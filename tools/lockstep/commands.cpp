// SPDX-License-Identifier: BSD-3-Clause
#include "commands.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <signal.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/log.h>
#include <lockstep/version.h>

#include "base/host.h"
#include "base/limits.h"
#include "base/throw_error.h"
#include "doctor/checks.h"
#include "doctor/devices.h"
#include "doctor/hosts.h"
#include "doctor/peers.h"
#include "doctor/report.h"
#include "doctor/table.h"
#include "launch/guard.h"
#include "launch/launch.h"
#include "lockstep_bench/options.h"
#include "node_command.h"
#include "observe_commands.h"
#include "problem_report.h"
#include "report_parts.h"
#include "run_command.h"

namespace lockstep::cli {
namespace {

constexpr double kDefaultWatch = 2;
constexpr double kShortestWatch = 0.1;
constexpr double kLongestWatch = 24 * 3600;
constexpr const char* kReportFile = "lockstep-report-<host>.txt";
constexpr const char* kHomeAndClear = "\x1b[H\x1b[J";

// Whether one of `signals`, which are blocked, came within `seconds`.
bool signal_within(double seconds, const sigset_t& signals) {
  const double whole = std::floor(seconds);
  const timespec time{.tv_sec = static_cast<time_t>(whole),
                      .tv_nsec = static_cast<long>((seconds - whole) * 1e9)};
  return ::sigtimedwait(&signals, nullptr, &time) > 0;
}

double checked_seconds(double seconds) {
  if (seconds >= kShortestWatch && seconds <= kLongestWatch) return seconds;
  throw_error<ArgumentError>("--watch={}: the seconds must be in {} .. {}", seconds, kShortestWatch,
                             kLongestWatch);
}

// With --watch, each JSON document is one line.
std::string snapshot(bool json, bool watching) {
  const auto devices = doctor::read_devices();
  if (json) return doctor::devices_json(devices).dump(watching ? -1 : 2) + '\n';
  return doctor::devices_text(devices, doctor::terminal_width());
}

int watch(bool json, double seconds) {
  const bool redraws = !json && ::isatty(STDOUT_FILENO) != 0;
  // Ctrl-C and SIGTERM end the wait instead of the process.
  sigset_t signals{};
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGINT);
  ::sigaddset(&signals, SIGTERM);
  const launch::BlockedSignals blocked(signals);
  ::signal(SIGPIPE, SIG_IGN);  // without a reader the loop ends
  for (bool first = true; std::cout.good(); first = false) {
    const auto text = snapshot(json, /*watching=*/true);
    if (!first && !json && !redraws) std::cout << '\n';
    std::cout << (redraws ? kHomeAndClear : "") << text << std::flush;
    if (signal_within(seconds, signals)) break;
  }
  return 0;
}

}  // namespace

Command devices_command(CLI::App& app) {
  struct Options {
    bool json = false;
    std::optional<double> watch;
  };
  const auto options = std::make_shared<Options>();
  auto* devices = app.add_subcommand("devices", "Show the cores, memory, NUMA nodes and GPUs of this host");
  devices->add_flag("--json", options->json, "Print JSON; with --watch one line per update");
  devices->add_option("--watch", options->watch, "Update every SECONDS (default 2) until Ctrl-C")
      ->type_name("SECONDS")
      ->expected(0, 1)
      ->default_str(fmt::format("{}", kDefaultWatch));
  return {.app = devices, .run = [options](const auto& /*rest*/) {
            if (options->watch) return watch(options->json, checked_seconds(*options->watch));
            std::cout << snapshot(options->json, /*watching=*/false) << std::flush;
            return 0;
          }};
}

namespace {

// Remote shells may be slow to start.
constexpr std::chrono::seconds kConnectivityLimit{20};

struct ConnectivityResult {
  std::vector<doctor::Peer> peers{};
  doctor::Findings findings{};
};

ConnectivityResult run_connectivity_test(const std::string& text) {
  if (text.empty()) return {};
  const auto test = doctor::parse_connectivity_test(text);
  try {
    auto peers = doctor::test_connectivity(test, kConnectivityLimit);
    auto findings = doctor::check_peers(peers, test.port);
    return {std::move(peers), std::move(findings)};
  } catch (const Error& error) {
    return {{},
            {doctor::problem("other hosts", error.what(),
                             "free this port on the host, or choose another with --port")}};
  }
}

struct DoctorOptions {
  bool json = false;
  std::string meeting{};  // from another doctor, which asks this host among others
  std::string report{};   // the file; empty: none
  std::string run{};      // in the report
  doctor::HostsOptions hosts{};
};

// Before the checks, which start ranks of their own.
RunText run_for_report(const DoctorOptions& options) {
  if (options.report.empty()) return {};
  require_report_file(options.report);
  return run_text(options.run);
}

int check_this_host(const DoctorOptions& options) {
  const auto run = run_for_report(options);
  auto [peers, findings] = run_connectivity_test(options.meeting);
  const auto facts = doctor::read_facts(options.hosts.port);
  const auto own = doctor::check_all(facts, Env());
  findings.insert(findings.begin(), own.begin(), own.end());
  const auto report = doctor::make_report(facts, std::move(peers), std::move(findings));
  if (!options.report.empty()) {
    write_problem_report(options.report, facts, report.findings, run.sections);
    std::cout << fmt::format("{}: {}. Read the file before you publish it.\n{}\n", options.report,
                             doctor::summary(report.findings), run.line);
  } else {
    std::cout << (options.json ? doctor::report_json(report).dump(2) + '\n' : doctor::report_text(report));
  }
  std::cout << std::flush;
  return doctor::count(report.findings, doctor::Severity::problem) == 0 ? 0 : 1;
}

int check_all_hosts(const DoctorOptions& options) {
  const auto reports = doctor::ask_hosts(options.hosts);
  const auto between = doctor::compare_hosts(reports);
  std::cout << (options.json ? doctor::hosts_json(reports, between).dump(2) + '\n'
                             : doctor::hosts_text(reports, between, doctor::terminal_width()))
            << std::flush;
  int problems = doctor::count(between, doctor::Severity::problem);
  for (const auto& host : reports) problems += doctor::count(host.report.findings, doctor::Severity::problem);
  return problems == 0 ? 0 : 1;
}

int run_doctor(const DoctorOptions& options) {
  const auto& [hosts, ssh, program, port] = options.hosts;
  if (port && (*port < 1 || *port > 65535)) {
    throw_error<ArgumentError>("--port {}: a port must be in 1 .. 65535", *port);
  }
  if (hosts.empty() && !(ssh.empty() && program.empty())) {
    throw ArgumentError("--ssh and --program need --hosts");
  }
  doctor::check_hosts(hosts);
  return hosts.empty() ? check_this_host(options) : check_all_hosts(options);
}

}  // namespace

Command doctor_command(CLI::App& app) {
  const auto options = std::make_shared<DoctorOptions>();
  auto& [hosts, ssh, program, port] = options->hosts;
  auto& doctor = *app.add_subcommand("doctor", "Check this host, or several, before training");
  auto* const json = doctor.add_flag("--json", options->json, "Print JSON");
  doctor.add_option("--port", port, "Check that this port is free, as for --master-port")->type_name("PORT");
  auto* const on_hosts =
      doctor.add_option("--hosts", hosts, "Check these hosts, and the connections between them")
          ->type_name("HOST,HOST,...")
          ->delimiter(',');
  doctor.add_option("--ssh", ssh, "Remote shell for --hosts (default: ssh without prompts)")
      ->type_name("COMMAND");
  doctor.add_option("--program", program, "Path of lockstep on the hosts (default: the path on this host)")
      ->type_name("PATH");
  auto* const report =
      doctor.add_option("--report", options->report,
                        "Write a file for an issue about a hang, a crash or a wrong result: the checks, "
                        "versions, and what the ranks of a run do");
  report->type_name("FILE")->expected(0, 1)->default_str(kReportFile)->excludes(json)->excludes(on_hosts);
  doctor
      .add_option("--run", options->run,
                  std::string(kRunHelp) + "; or a folder of recorder files, of a run that has ended")
      ->type_name("RUN|DIR")
      ->needs(report);
  doctor.add_option("--meeting", options->meeting)->group("");
  doctor.footer("The exit code is 0 without problems (warnings are allowed), else 1.");
  return {.app = &doctor, .run = [options](const auto& /*rest*/) {
            // Hosts may share the folder.
            if (options->report == kReportFile)
              options->report = fmt::format("lockstep-report-{}.txt", host_name());
            return run_doctor(*options);
          }};
}

namespace {

std::string bench_program() {
  const auto program = own_program().replace_filename("lockstep-bench");
  if (std::filesystem::exists(program)) return program.string();
  throw_error<LaunchError>(
      "lockstep bench needs the program {}, which does not exist; build the target "
      "lockstep_bench, or install all of Lockstep",
      program.string());
}

// On a terminal the rows of the table show the progress.
bool shows_progress(const bench::Options& options) {
  const bool shows_rows = options.format != bench::Format::json && ::isatty(STDOUT_FILENO) != 0;
  return options.progress || (::isatty(STDERR_FILENO) != 0 && !shows_rows);
}

// By `lockstep run`.
int run_bench_on(const std::string& hosts, const std::vector<std::string>& words, int ranks) {
  std::vector<std::string> whole{
      "run",           "--hosts",     hosts, "--nproc-per-node", std::to_string(ranks),
      "--plain-lines", "--no-python", "--",  bench_program()};
  whole.insert(whole.end(), words.begin(), words.end());
  return run(whole);
}

int run_bench(std::vector<std::string> words, const std::string& hosts, int ranks) {
  try {
    const auto options = bench::parse_options(bench::Tool::lockstep_bench, words);
    if (!options.progress && shows_progress(options)) words.emplace_back("--progress");
  } catch (const bench::HelpWanted& help) {
    std::cout << help.text << std::flush;
    return 0;
  }
  if (!hosts.empty()) return run_bench_on(hosts, words, ranks);
  require_address_space();
  words.insert(words.begin(), bench_program());
  return launch::launch({.command = words, .nproc_per_node = ranks, .output = {.mark_lines = false}});
}

}  // namespace

Command bench_command(CLI::App& app) {
  auto* bench =
      app.add_subcommand("bench", "Measure collectives: lockstep bench [--nproc N] COLLECTIVE [OPTIONS...]");
  const auto ranks = std::make_shared<int>(2);
  const auto hosts = std::make_shared<std::string>();
  bench->add_option("--nproc,-n", *ranks, "Number of ranks, on each host");
  bench->add_option("--hosts", *hosts, "Run on these hosts, as lockstep run does");
  bench->set_help_flag();
  bench->allow_extras();
  return {.app = bench,
          .run = [=](const auto& /*rest*/) { return run_bench(bench->remaining(), *hosts, *ranks); }};
}

namespace {

[[noreturn]] void become(const std::string& name, std::vector<std::string> words) {
  require_address_space();
  words.insert(words.begin(), own_program().replace_filename("lockstep-" + name).string());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(argv.front(), argv.data());
  throw_error<LaunchError>(
      "lockstep {} needs the program {}, which cannot be started: {}; build all "
      "targets, or install all of Lockstep",
      name, words.front(), errno_text(errno));
}

// The command `name`, whose words go to the program lockstep-<name>.
Command program_command(CLI::App& app, const std::string& name, const std::string& description) {
  auto* command = app.add_subcommand(name, description);
  command->set_help_flag();
  // A file may have the name of a subcommand.
  command->prefix_command();
  return {.app = command, .run = [command, name](const auto& rest) -> int {
            auto words = command->remaining();
            words.insert(words.end(), rest.begin(), rest.end());
            become(name, std::move(words));
          }};
}

}  // namespace

Command ckpt_command(CLI::App& app) {
  return program_command(app, "ckpt",
                         "Show, compare, convert and verify checkpoints: lockstep ckpt show FILE");
}

Command plan_command(CLI::App& app) {
  return program_command(app, "plan",
                         "Estimate time and memory of meshes: lockstep plan --gpt 12,768,50257,1024");
}

namespace {

int parse_and_run(const std::vector<std::string>& arguments) {
  CLI::App app("Distributed data-parallel training for LibTorch", "lockstep");
  app.set_version_flag("--version", "lockstep " + lockstep::version());
  const std::vector<Command> commands{
      run_command(app, arguments), node_command(app),   bench_command(app), ckpt_command(app),
      devices_command(app),        doctor_command(app), plan_command(app),  recorder_command(app),
      stacks_command(app),         top_command(app)};

  // CLI11 takes arguments in reverse order. Arguments after "--" belong to the program.
  const auto separator = std::ranges::find(arguments, "--");
  std::vector<std::string> ours(arguments.begin(), separator);
  std::ranges::reverse(ours);
  try {
    app.parse(ours);
  } catch (const CLI::Success& request) {
    return app.exit(request);
  }
  for (const auto& command : commands) {
    if (!command.app->parsed()) continue;
    const int code = command.run({separator, arguments.end()});
    require_output();
    return code;
  }
  std::cerr << app.help();
  return kUsageError;
}

}  // namespace

int run(const std::vector<std::string>& arguments) {
  try {
    return parse_and_run(arguments);
  } catch (const CLI::ParseError& error) {
    log(LogLevel::error, std::string(error.what()) + " (see lockstep --help)");
    return kUsageError;
  } catch (const ArgumentError& error) {
    log(LogLevel::error, error.what());
    return kUsageError;
  } catch (const launch::ProgramError& error) {
    log(LogLevel::error, error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    log(LogLevel::error, exception_text(error));
    return 1;
  }
}

}  // namespace lockstep::cli
