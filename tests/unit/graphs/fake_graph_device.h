// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>

#include <gtest/gtest.h>

#include <lockstep/graphs/graphed_step.h>

#include "graphs/graph_phase.h"

namespace lockstep::testing {

// Recording calls the work, as a GPU's does, though here it is computed: tests look at values of replays
// only. Replaying does `on_replay`.
class FakeGraphDevice : public GraphDevice {
 public:
  void run_on_side_stream(const std::function<void()>& work) override {
    ++aside;
    work();
  }
  std::unique_ptr<DeviceGraph> record(const std::function<void()>& work,
                                      const std::vector<at::Generator>& /*generators*/) override {
    ++records;
    EXPECT_EQ(graph_phase(), GraphPhase::capture);
    work();
    return std::make_unique<Graph>(*this);
  }

  int aside = 0;
  int records = 0;
  int replays = 0;
  std::function<void()> on_replay = [] {};

 private:
  class Graph : public DeviceGraph {
   public:
    explicit Graph(FakeGraphDevice& device) : device_(device) {}
    void replay() override {
      ++device_.replays;
      device_.on_replay();
    }

   private:
    FakeGraphDevice& device_;
  };
};

}  // namespace lockstep::testing
