// A solution of the capstone in C++, from its page alone: one rank of a ring, over sockets.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using std::size_t;
using Numbers = std::vector<double>;

struct Array {  // [heads, tokens, dim]
  size_t heads = 0, tokens = 0, dim = 0;
  Numbers x = Numbers(heads * tokens * dim);
  double* row(size_t head, size_t token) { return &x[(head * tokens + token) * dim]; }
};

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

struct Case {
  std::map<std::string, Numbers> words;
  explicit Case(const std::string& folder) {
    std::ifstream file(folder + "/case.txt");
    for (std::string line; std::getline(file, line);) {
      std::istringstream text(line);
      std::string name;
      text >> name;
      words[name] = Numbers(std::istream_iterator<double>(text), {});
    }
  }
  size_t number(const std::string& name) const { return static_cast<size_t>(words.at(name).at(0)); }
  const Numbers& positions(size_t rank) const { return words.at("positions_" + std::to_string(rank)); }
};

Array load(const std::string& path, size_t heads, size_t dim) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const size_t begin =
      10 + static_cast<unsigned char>(bytes.at(8)) + 256 * static_cast<unsigned char>(bytes.at(9));
  std::vector<float> numbers((bytes.size() - begin) / sizeof(float));
  std::copy_n(bytes.data() + begin, numbers.size() * sizeof(float), reinterpret_cast<char*>(numbers.data()));
  Array array{heads, numbers.size() / heads / dim, dim};
  std::copy(numbers.begin(), numbers.end(), array.x.begin());
  return array;
}

void save(const std::string& path, const Array& array) {
  std::ostringstream shape;
  shape << "{'descr': '<f4', 'fortran_order': False, 'shape': (" << array.heads << ", " << array.tokens
        << ", " << array.dim << "), }";
  std::string header = shape.str();
  header.resize(117, ' ');
  header += '\n';
  std::ofstream file(path, std::ios::binary);
  file << "\x93NUMPY" << '\1' << '\0' << static_cast<char>(header.size()) << '\0' << header;
  for (const double x : array.x) {
    const auto number = static_cast<float>(x);
    file.write(reinterpret_cast<const char*>(&number), sizeof(number));
  }
}

// A connection to the next rank, and one from the rank before.
class Ring {
 public:
  explicit Ring(const Case& c) : rank_(c.number("rank")), ranks_(c.number("ranks")) {
    const auto port = [&](size_t rank) { return htons(static_cast<std::uint16_t>(c.number("port") + rank)); };
    sockaddr_in here{}, there{};
    here.sin_family = there.sin_family = AF_INET;
    here.sin_addr.s_addr = there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    here.sin_port = port(rank_);
    there.sin_port = port((rank_ + 1) % ranks_);
    const int door = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (bind(door, reinterpret_cast<sockaddr*>(&here), sizeof(here)) != 0 || listen(door, 1) != 0)
      fail("listen");
    for (;;) {  // until the next rank listens
      next_ = socket(AF_INET, SOCK_STREAM, 0);
      if (connect(next_, reinterpret_cast<sockaddr*>(&there), sizeof(there)) == 0) break;
      close(next_);
      usleep(10000);
    }
    previous_ = accept(door, nullptr, nullptr);
    if (previous_ < 0) fail("accept");
  }

  size_t owner(size_t step) const { return (rank_ + ranks_ - step % ranks_) % ranks_; }
  size_t rank() const { return rank_; }
  size_t ranks() const { return ranks_; }

  // Sends the array, and returns the one of the rank before, which has so many tokens.
  Array shift(const Array& array, size_t tokens) const {
    Array arrived{array.heads, tokens, array.dim};
    std::thread sender([&] {
      all(array.x.size(), array.x.data(), [&](auto* at, size_t left) { return write(next_, at, left); });
    });
    all(arrived.x.size(), arrived.x.data(), [&](auto* at, size_t left) { return read(previous_, at, left); });
    sender.join();
    return arrived;
  }

 private:
  template <class Number>
  static void all(size_t count, Number* numbers, const auto& move) {
    using Byte = std::conditional_t<std::is_const_v<Number>, const char, char>;
    auto* at = reinterpret_cast<Byte*>(numbers);
    for (size_t left = count * sizeof(double); left > 0;) {
      const ssize_t moved = move(at, left);
      if (moved <= 0) fail("a message");
      at += moved;
      left -= static_cast<size_t>(moved);
    }
  }

  size_t rank_, ranks_;
  int next_ = -1, previous_ = -1;
};

double dot(const double* a, const double* b, size_t dim) {
  double sum = 0;
  for (size_t d = 0; d < dim; ++d) sum += a[d] * b[d];
  return sum;
}

struct Rank {
  const Case& c;
  const Ring& ring;
  Array q, k, v;
  size_t group = q.heads / k.heads;
  double scale = c.words.at("scale")[0];
  bool causal = c.number("causal") == 1;
  Array out{q.heads, q.tokens, q.dim};
  Numbers lse = Numbers(q.heads * q.tokens);

  // For each pair that the mask leaves: its head, its query, its key.
  void each_pair(size_t owner, const auto& visit) const {
    const Numbers &own = c.positions(ring.rank()), &theirs = c.positions(owner);
    for (size_t head = 0; head < q.heads; ++head)
      for (size_t i = 0; i < own.size(); ++i)
        for (size_t j = 0; j < theirs.size(); ++j)
          if (!causal || theirs[j] <= own[i]) visit(head, i, j);
  }
  size_t tokens_at(size_t step) const { return c.positions(ring.owner(step)).size(); }

  void forward() {
    Numbers m(lse.size(), -std::numeric_limits<double>::infinity()), l(lse.size());
    Array keys = k, values = v;
    for (size_t step = 0; step < ring.ranks(); ++step) {
      each_pair(ring.owner(step), [&](size_t head, size_t i, size_t j) {
        const size_t row = head * q.tokens + i;
        const double s = scale * dot(q.row(head, i), keys.row(head / group, j), q.dim),
                     merged = std::max(m[row], s);
        const double old = std::exp(m[row] - merged), p = std::exp(s - merged);
        for (size_t d = 0; d < q.dim; ++d)
          out.row(head, i)[d] = old * out.row(head, i)[d] + p * values.row(head / group, j)[d];
        l[row] = old * l[row] + p;
        m[row] = merged;
      });
      if (step + 1 == ring.ranks()) break;
      keys = ring.shift(keys, tokens_at(step + 1));
      values = ring.shift(values, tokens_at(step + 1));
    }
    for (size_t row = 0; row < lse.size(); ++row) {
      for (size_t d = 0; d < q.dim; ++d) out.x[row * q.dim + d] /= l[row];
      lse[row] = m[row] + std::log(l[row]);
    }
  }

  struct Gradients {
    Array q, k, v;
  };
  Gradients backward(Array& dout) {
    Gradients sum{{q.heads, q.tokens, q.dim}, {k.heads, k.tokens, k.dim}, {k.heads, k.tokens, k.dim}};
    Array keys = k, values = v;
    for (size_t step = 0; step < ring.ranks(); ++step) {
      each_pair(ring.owner(step), [&](size_t head, size_t i, size_t j) {
        const size_t kv = head / group;
        const double p =
            std::exp(scale * dot(q.row(head, i), keys.row(kv, j), q.dim) - lse[head * q.tokens + i]);
        const double delta = dot(dout.row(head, i), out.row(head, i), q.dim);
        const double ds = scale * p * (dot(dout.row(head, i), values.row(kv, j), q.dim) - delta);
        for (size_t d = 0; d < q.dim; ++d) {
          sum.q.row(head, i)[d] += ds * keys.row(kv, j)[d];
          sum.k.row(kv, j)[d] += ds * q.row(head, i)[d];
          sum.v.row(kv, j)[d] += p * dout.row(head, i)[d];
        }
      });
      const size_t tokens = tokens_at(step + 1);
      sum.k = ring.shift(sum.k, tokens);  // N hops: the last one is back to the owner
      sum.v = ring.shift(sum.v, tokens);
      if (step + 1 == ring.ranks()) break;
      keys = ring.shift(keys, tokens);
      values = ring.shift(values, tokens);
    }
    return sum;
  }
};

}  // namespace

int main(int, char** argv) {
  const std::string in = argv[3], folder = argv[4];
  const Case c(in);
  const Ring ring(c);
  const size_t heads = c.number("heads"), kv_heads = c.number("kv_heads"), dim = c.number("dim");
  Rank rank{c, ring, load(in + "/q.npy", heads, dim), load(in + "/k.npy", kv_heads, dim),
            load(in + "/v.npy", kv_heads, dim)};
  rank.forward();
  save(folder + "/out.npy", rank.out);
  if (c.number("gradients") == 0) return 0;
  Array dout = load(in + "/dout.npy", heads, dim);
  const Rank::Gradients sum = rank.backward(dout);
  save(folder + "/dq.npy", sum.q);
  save(folder + "/dk.npy", sum.k);
  save(folder + "/dv.npy", sum.v);
}
