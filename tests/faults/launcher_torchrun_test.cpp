// SPDX-License-Identifier: BSD-3-Clause
// Command lines of torchrun's users, run by live torchrun and by lockstep run: ranks must be given the same.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/launcher_process.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

struct Case {
  Words arguments{};
  Variables environment{};
  Words ours{};         // if lockstep run spells it differently
  bool launch = false;  // torch.distributed.launch, not torchrun
  bool logs = false;    // compare the files under {logs}, too
  bool fails = false;
};

// {py}: show_rank.py; {sh}: a shell script around it; {port}: a free port; {logs}: a folder.
std::vector<Case> cases() {
  return {
      {{"--standalone", "--nproc-per-node=2", "{py}", "--lr", "0.1"}},
      {{"--nproc_per_node=2", "{py}"}},
      {{"--nproc-per-node", "2", "--master-port", "{port}", "{py}"}},
      {{"--nnodes=1", "--nproc-per-node=2", "--node-rank=0", "--master-addr=127.0.0.1",
        "--master-port={port}", "{py}", "a", "b"}},
      {{"--nnodes=1", "--nproc_per_node=2", "--node_rank=0", "--master_addr", "localhost", "--master_port",
        "{port}", "{py}"}},
      {{"--nnodes", "1:1", "--nproc-per-node", "2", "{py}"}},
      {{"--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
        "--rdzv-id=job7", "{py}"}},
      {{"--nnodes", "1:1", "--nproc_per_node", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint",
        "127.0.0.1:{port}", "--rdzv_id", "100", "{py}"}},
      {{"--rdzv-endpoint", "127.0.0.1:{port}", "--nproc-per-node", "2", "{py}"}},
      {{"--nproc-per-node=cpu", "{py}"}},
      {{"--nproc-per-node=auto", "{py}"}},
      {{"--max-restarts=3", "--nproc-per-node=2", "{py}"}},
      {{"--max_restarts", "1", "--nproc-per-node=2", "{py}", "--fail-first"}},
      {{"--max-restarts", "1", "{py}", "--fail"}, {}, {}, false, false, true},
      {{"{py}", "--fail"}, {}, {}, false, false, true},
      {{"--monitor-interval=0.05", "{py}"}},
      {{"--start-method=fork", "{py}"}},
      {{"--role=trainer", "--nproc-per-node=2", "{py}"}},
      {{"-m", "show_rank", "x", "y"}},
      {{"--module", "--nproc-per-node", "2", "show_rank", "-m", "z"}},
      {{"--no-python", "{sh}", "1", "2"}},
      {{"--no_python", "--nproc-per-node", "2", "sh", "-c", "exec {sh} \"$RANK\""}},
      {{"--log-dir", "{logs}", "--redirects=3", "--nproc-per-node=2", "{py}"}, {}, {}, false, true},
      {{"--log_dir={logs}", "--tee", "3", "--nproc-per-node=2", "{py}"}, {}, {}, false, true},
      {{"--log-dir", "{logs}", "-r", "0:1,1:2", "-t", "1:1", "--nproc-per-node=2", "{py}"},
       {},
       {},
       false,
       true},
      {{"--log-dir", "{logs}", "-r", "3", "--max-restarts=1", "{py}", "--fail-first"}, {}, {}, false, true},
      {{"--local-ranks-filter=0", "--nproc-per-node=2", "{py}"}},
      {{"--virtual-local-rank", "--nproc-per-node=2", "{py}"}},
      {{"--virtual_local_rank", "--nproc-per-node=2", "{py}"}, {{"CUDA_VISIBLE_DEVICES", "3,5"}}},
      {{"{py}", "--out=${local_rank}.txt", "${unknown}"}},
      {{"{py}", "x"}, {{"PET_NPROC_PER_NODE", "2"}, {"PET_ROLE", "from_env"}}},
      {{"--nproc-per-node=1", "{py}"}, {{"PET_NPROC_PER_NODE", "2"}}},
      {{"--rdzv-backend", "c10d", "--rdzv-conf", "join_timeout=60,last_call_timeout=1", "--nproc-per-node=2",
        "{py}"}},
      {{"--shutdown-timeout=3", "{py}"}},
      {{"--signals-to-handle=SIGTERM,SIGUSR1", "{py}"}},
      {{"--run-path", "{py}", "q"}},
      {{"--local-addr=127.0.0.1", "--nproc-per-node=2", "{py}"}},
      {{"--nproc-per-node=2", "--", "{py}", "--not-ours"}},
      {{"--event-log-handler", "null", "{py}"}},
      {{"--use-env", "--nproc-per-node=2", "{py}"}, {}, {}, true},
      {{"--nproc_per_node=2", "{py}", "w"},
       {},
       {"--pass-local-rank", "--nproc_per_node=2", "{py}", "w"},
       true},
  };
}

void replace(std::string& text, const std::string& what, const std::string& with) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
}

// One side of a case, with files of its own.
class Side {
 public:
  Side(const fs::path& folder, const Words& arguments, const Variables& environment)
      : folder_(folder), arguments_(arguments), environment_(environment) {
    for (const char* name : {"shown", "logs"}) fs::create_directories(folder_ / name);
    const auto script = folder_ / "show.sh";
    std::ofstream(script) << "#!/bin/sh\nexec " << LOCKSTEP_PYTHON << " " << kShowRank << " \"$@\"\n";
    fs::permissions(script, fs::perms::owner_all);
    const auto port = free_port();
    for (auto& word : arguments_) {
      replace(word, "{py}", kShowRank);
      replace(word, "{sh}", script.string());
      replace(word, "{port}", port);
      replace(word, "{logs}", (folder_ / "logs").string());
    }
    environment_.emplace("SHOW_TO", (folder_ / "shown").string());
    environment_.emplace("PYTHON_EXEC", LOCKSTEP_PYTHON);
    environment_.emplace("PYTHONPATH", fs::path(kShowRank).parent_path().string());
  }

  const Words& arguments() const { return arguments_; }
  const Variables& environment() const { return environment_; }

  // By rank and attempt: the arguments and the variables that a launcher is to set.
  std::map<std::string, Json> shown(bool own_address) const {
    std::map<std::string, Json> ranks;
    for (const auto& entry : fs::directory_iterator(folder_ / "shown")) {
      auto json = Json::parse(std::ifstream(entry.path()));
      Json kept = {{"arguments", json["arguments"]}};
      for (auto word : kept["arguments"]) EXPECT_TRUE(word.is_string());
      for (const auto& [name, value] : json["environment"].items()) {
        if (is_compared(name, own_address)) kept[name] = value;
      }
      ranks[entry.path().filename().string()] = std::move(kept);
    }
    return ranks;
  }

  // Without the run's folder, which has a random name.
  std::set<std::string> logs() const {
    std::set<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / "logs")) {
      const auto path = fs::relative(entry.path(), folder_ / "logs").string();
      if (entry.is_regular_file() && !path.ends_with("error.json")) files.insert(path.substr(path.find('/')));
    }
    return files;
  }

  inline static const std::string kShowRank = LOCKSTEP_SHOW_RANK;

 private:
  // Excluded: designed differences (see LauncherEnvironment.EqualsTorchruns), the address and the id of each
  // side.
  static bool is_compared(const std::string& name, bool own_address) {
    if (name == "MASTER_PORT" || name == "MASTER_ADDR" || name == "TORCHELASTIC_RUN_ID")
      return own_address && name != "MASTER_PORT";
    if (name == "TORCHELASTIC_RESTART_COUNT" || name == "TORCHELASTIC_MAX_RESTARTS") return true;
    return name.starts_with("ROLE_") || name.ends_with("RANK") || name.ends_with("WORLD_SIZE") ||
           name == "CUDA_VISIBLE_DEVICES" || name == "TORCH_NCCL_ASYNC_ERROR_HANDLING";
  }

  fs::path folder_;
  Words arguments_;
  Variables environment_;
};

std::string described(const Words& words) {
  std::string text;
  for (const auto& word : words) text += " " + word;
  return text;
}

bool names_an_address(const Words& words) {
  const auto text = described(words);
  return text.find("master") != std::string::npos;
}

// All of torchrun's in one process, which imports torch once.
std::vector<int> run_torchrun(const fs::path& folder, const std::vector<Case>& all,
                              const std::vector<Side>& sides) {
  Json list = Json::array();
  for (std::size_t i = 0; i < all.size(); ++i) {
    list.push_back({{"launcher", all[i].launch ? "launch" : "run"},
                    {"arguments", sides[i].arguments()},
                    {"environment", sides[i].environment()}});
  }
  std::ofstream(folder / "cases.json") << list;
  std::istringstream lines(run_python("faults/torchrun_cases.py", {.args = {(folder / "cases.json").string()},
                                                                   .timeout = std::chrono::seconds(350)}));
  std::vector<int> codes;
  for (int code = 0; lines >> code;) codes.push_back(code);
  return codes;
}

TEST(LauncherTorchrun, CommandLinesDoTheSame) {
  const TempFolder folder;
  const auto all = cases();
  std::vector<Side> theirs;
  for (const auto& one : all) {
    theirs.emplace_back(folder.path() / fmt::format("theirs{}", theirs.size()), one.arguments,
                        one.environment);
  }
  const auto codes = run_torchrun(folder.path(), all, theirs);
  ASSERT_EQ(codes.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(described(all[i].arguments));
    const Side ours(folder.path() / fmt::format("ours{}", i),
                    all[i].ours.empty() ? all[i].arguments : all[i].ours, all[i].environment);
    Words words{"run"};
    words.insert(words.end(), ours.arguments().begin(), ours.arguments().end());
    LauncherProcess launcher(words, {.env = ours.environment()});
    const int code = launcher.finish();
    // torchrun's is 1 after any failure, ours the rank's.
    EXPECT_EQ(code, all[i].fails ? 5 : 0) << launcher.err();
    EXPECT_EQ(codes[i] != 0, all[i].fails);
    const bool own_address = names_an_address(all[i].arguments);
    EXPECT_EQ(ours.shown(own_address), theirs[i].shown(own_address));
    EXPECT_FALSE(ours.shown(own_address).empty());
    if (all[i].logs) {
      EXPECT_EQ(ours.logs(), theirs[i].logs());
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
