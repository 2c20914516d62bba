// What a runtime's owner asks of it while its customers go on, and customers
// that do, by slots and by bytes.
#pragma once

#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "runtime/messages/port.h"
#include "terrace/byte_queue.h"
#include "tests/contract/failing_disk.h"

namespace terrace {

// Posted, not awaited.
struct OwnerQuestion {
  explicit OwnerQuestion(LocalRuntime& its)
      : port(its.mover().ports().Open()), question(*port) {}
  const std::shared_ptr<Port> port;
  Question question;
};

class OwnerQuestions : public FailingDisk {
 protected:
  using Asked = OwnerQuestion;

  LocalRuntime& local() { return dynamic_cast<LocalRuntime&>(runtime()); }
  template <typename Body>
  std::unique_ptr<Asked> Post(Body request) {
    auto asked = std::make_unique<Asked>(local());
    request.id = asked->question.id();
    local().mover().inbox()->Post(OwnerRequest(std::move(request)));
    return asked;
  }

  // A number from 0 on, below `most`.
  using Draw = std::function<int(int most)>;
  static Draw DrawsOf(std::minstd_rand& random) {
    return [&random](int most) {
      return static_cast<int>(random() % static_cast<uint32_t>(most));
    };
  }

  // So many uses of so many tensors, which find what was written to them; then
  // all are read. `ask` is called before each use, and what it asks is answered
  // by that kind.
  template <typename AnswerBody>
  void UseMeanwhile(const Draw& draw, int count, int uses,
                    const std::function<std::unique_ptr<Asked>()>& ask) {
    auto slots = world().OpenQueue(kPage, 2);
    auto bytes = runtime().OpenBytes(4 * kPlace);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    const std::vector<TensorId> tensors = world().RegisterMany(count, kPage);
    std::vector<uint8_t> written(tensors.size());
    for (const TensorId each : tensors) world().Fill(*slots, each, 0);
    std::vector<std::unique_ptr<Asked>> asked;
    for (int i = 0; i < uses; ++i) {
      const auto which = static_cast<size_t>(draw(count));
      const bool writes = draw(3) == 0;
      std::unique_ptr<Asked> question = ask();
      if (question != nullptr) asked.push_back(std::move(question));
      if (draw(2) == 0) {
        if (writes) world().Fill(*slots, tensors[which], ++written[which]);
        EXPECT_TRUE(world().Holds(*slots, tensors[which], written[which]));
        continue;
      }
      const Access access = writes ? Access::kUpdate : Access::kRead;
      const auto pushed =
          (*bytes)->Push({{tensors[which], access}}, {}, Soon());
      ASSERT_TRUE(pushed.ok()) << pushed.status();
      auto news = (*bytes)->Await(*pushed, Soon());
      while (news.ok() && !news->pins.has_value()) {
        news = (*bytes)->Await(*pushed, Soon());
      }
      ASSERT_TRUE(news.ok() && news->pins->ok());
      Pin& pin = (**news->pins)[0];
      EXPECT_TRUE(HasPattern(pin.data(), written[which]));
      if (writes) WritePattern(pin.data(), ++written[which]);
    }
    for (const auto& each : asked) {
      EXPECT_TRUE(each->question.Await<AnswerBody>(ClockOf(runtime())).ok());
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(world().Holds(*slots, tensors[i], written[i])) << i;
    }
  }
};

}  // namespace terrace
