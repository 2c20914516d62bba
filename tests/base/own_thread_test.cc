#include "base/threads/own_thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

namespace terrace {
namespace {

TEST(OwnThreadTest, HasItsNameAndNoSignals) {
  std::string name(16, '\0');
  sigset_t blocked;
  sigemptyset(&blocked);
  std::thread thread = StartThread("terrace-fifteen", [&] {
    pthread_getname_np(pthread_self(), name.data(), name.size());
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  });
  thread.join();
  EXPECT_STREQ(name.c_str(), "terrace-fifteen");
  EXPECT_TRUE(sigismember(&blocked, SIGTERM));
  EXPECT_TRUE(sigismember(&blocked, SIGINT));
}

TEST(OwnThreadTest, WhoStartsItKeepsItsSignals) {
  sigset_t before;
  sigset_t after;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  StartThread("terrace", [] {}).join();
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  EXPECT_EQ(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
}

TEST(OwnThreadTest, OwnsItsBody) {
  int value = 0;
  auto moved = std::make_unique<int>(7);
  StartThread("terrace", [&value, moved = std::move(moved)] {
    value = *moved;
  }).join();
  EXPECT_EQ(value, 7);
}

}  // namespace
}  // namespace terrace
