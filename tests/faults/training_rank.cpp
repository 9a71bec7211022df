// SPDX-License-Identifier: BSD-3-Clause
// A rank of a training to which the fault tests do harm: training_rank <faulty|preempted|shrinking> <argument>...
// The files <kind>_rank.cpp describe the arguments.
#include <string_view>

namespace lockstep::testing {

using Main = int(int argc, char** argv);

// clang-format off
namespace faulty { Main main; }
namespace preempted { Main main; }
namespace shrinking { Main main; }
// clang-format on

}  // namespace lockstep::testing

int main(int argc, char** argv) {
  using namespace lockstep::testing;
  const std::string_view kind = argc > 1 ? argv[1] : "";
  if (kind == "faulty") return faulty::main(argc - 1, argv + 1);
  if (kind == "preempted") return preempted::main(argc - 1, argv + 1);
  if (kind == "shrinking") return shrinking::main(argc - 1, argv + 1);
  return 2;
}
