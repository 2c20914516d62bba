// A process of an ordinary user that is in the socket's group: it trains over
// the daemon until it is asked, and then compares what it has with plain
// vectors that went through the same.
//
//   TrainingProcess job("alice");
//   ASSERT_TRUE(job.Trains());
//   ... the daemon is killed ...
//   EXPECT_TRUE(job.WentOn());
//
// One thread.
#pragma once

#include <string>

#include "tests/daemon/server/hostile/played_process.h"

namespace terrace {

// This process is that user's from here on, with its groups.
void BecomeUser(const std::string& name);

class TrainingProcess {
 public:
  explicit TrainingProcess(const std::string& user);

  // Once it has done a step; false: it could not.
  bool Trains() { return process_.HasTold(); }
  // Whether it has gone on since: at least two steps, all with the same bits.
  bool WentOn();

 private:
  PlayedProcess process_;
};

}  // namespace terrace
