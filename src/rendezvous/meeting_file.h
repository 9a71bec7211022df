// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/base/deadline.h>

#include "rendezvous/tcp.h"

namespace lockstep::rendezvous {

// How the ranks of "file:///path" find rank 0's store.
//
// Every rank writes <path>.rank<r> with a number drawn anew. Rank 0, once it has all of them, writes
// <path>.run: its addresses and everybody's number. A rank believes a run file only when its own number is in
// it, so nothing that an earlier run left behind (killed or not) can be mistaken for this one. Rank 0 removes
// what it finds when it starts, and everything at the end of meeting; a rank whose file was removed writes it
// again. `path` itself is neither read nor written.
class MeetingFile {
 public:
  MeetingFile(std::string path, int rank, int world_size);
  ~MeetingFile();
  MeetingFile(const MeetingFile&) = delete;
  MeetingFile& operator=(const MeetingFile&) = delete;

  // Rank 0: waits for the others and tells them where it listens.
  void announce(int port, const Deadline& deadline);
  // The other ranks: waits for that. Both throw RendezvousError naming the ranks that have not come.
  Endpoint find(const Deadline& deadline);

 private:
  std::string rank_path(int rank) const;
  std::string run_path() const;
  void remove_leftovers() const;
  void sign_in() const;
  // Those that are not there now; remembers those that are.
  std::vector<int> missing();
  // Those that have never been there: a rank that gave up takes its file with it.
  std::vector<int> never_seen() const;
  [[noreturn]] void give_up(const Deadline& deadline) const;
  // Once rank 0 has written a run file with this rank's number in it.
  std::optional<Endpoint> server_of_this_run() const;

  std::string path_;
  int rank_;
  int world_size_;
  std::string ticket_;
  std::vector<bool> seen_;
};

}  // namespace lockstep::rendezvous
