// SPDX-License-Identifier: BSD-3-Clause
// One program of all benchmarks: <torch/torch.h> costs every program that is linked, and every file that is
// compiled by itself, more than a benchmark does.
//
//   build/release/bin/benchmark <name> [option]...
#include <exception>
#include <iostream>
#include <map>
#include <string>

namespace lockstep::bench {

// Parses the command line of a benchmark, which begins with its name, and returns the exit code. The file
// <name>.cpp defines it.
using Main = int(int argc, char** argv);

// clang-format off
namespace checkpoint { Main main; }
namespace data_parallel_step { Main main; }
namespace ddp_overhead { Main main; }
namespace ddp_step { Main main; }
namespace images { Main main; }
namespace loader { Main main; }
namespace lost_rank { Main main; }
namespace mlp { Main main; }
namespace mnist { Main main; }
namespace optim_step { Main main; }
namespace pipeline_step { Main main; }
namespace recorder { Main main; }
namespace rendezvous { Main main; }
namespace sharded_step { Main main; }
namespace sync_batch_norm { Main main; }
namespace tensor_parallel_step { Main main; }
// clang-format on

namespace {

const std::map<std::string, Main*> kBenchmarks{
    {"checkpoint", checkpoint::main},
    {"data_parallel_step", data_parallel_step::main},
    {"ddp_overhead", ddp_overhead::main},
    {"ddp_step", ddp_step::main},
    {"images", images::main},
    {"loader", loader::main},
    {"lost_rank", lost_rank::main},
    {"mlp", mlp::main},
    {"mnist", mnist::main},
    {"optim_step", optim_step::main},
    {"pipeline_step", pipeline_step::main},
    {"recorder", recorder::main},
    {"rendezvous", rendezvous::main},
    {"sharded_step", sharded_step::main},
    {"sync_batch_norm", sync_batch_norm::main},
    {"tensor_parallel_step", tensor_parallel_step::main},
};

int usage(std::ostream& out) {
  out << "Usage: benchmark <name> [option]...\nThe names are:\n";
  for (const auto& [name, _] : kBenchmarks) out << "  " << name << "\n";
  return &out == &std::cout ? 0 : 2;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep::bench;
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "-h" || name == "--help") return usage(std::cout);
  const auto found = kBenchmarks.find(name);
  if (found == kBenchmarks.end()) return usage(std::cerr);
  try {
    return found->second(argc - 1, argv + 1);
  } catch (const std::exception& error) {
    std::cerr << name << ": " << error.what() << std::endl;
    return 1;
  }
}
