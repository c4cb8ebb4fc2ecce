// One rank of a ring: ring RANK RANKS IN OUT. This start sends no message: a rank attends to its own keys alone.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

struct Array {  // [heads, tokens, dim]
  int heads, tokens, dim;
  std::vector<float> x = std::vector<float>(static_cast<std::size_t>(heads) * tokens * dim);
  float* row(int head, int token) { return &x[(static_cast<std::size_t>(head) * tokens + token) * dim]; }
};

// The numbers behind the header of a .npy file, float32 in C order.
Array load(const std::string& path, int heads, int dim) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const auto begin =
      10 + static_cast<unsigned char>(bytes.at(8)) + 256 * static_cast<unsigned char>(bytes.at(9));
  const int tokens = static_cast<int>((bytes.size() - begin) / sizeof(float)) / heads / dim;
  Array array{heads, tokens, dim};
  std::copy_n(bytes.data() + begin, bytes.size() - begin, reinterpret_cast<char*>(array.x.data()));
  return array;
}

void save(const std::string& path, const Array& array) {
  std::ostringstream shape;
  shape << "{'descr': '<f4', 'fortran_order': False, 'shape': (" << array.heads << ", " << array.tokens
        << ", " << array.dim << "), }";
  std::string header = shape.str();
  header.resize(118 - 1, ' ');
  header += '\n';
  std::ofstream file(path, std::ios::binary);
  file << "\x93NUMPY" << '\1' << '\0' << static_cast<char>(header.size()) << '\0' << header;
  file.write(reinterpret_cast<const char*>(array.x.data()),
             static_cast<std::streamsize>(array.x.size() * sizeof(float)));
}

int main(int, char** argv) {
  const std::string in = argv[3], out = argv[4];
  std::map<std::string, std::vector<double>> c;  // of case.txt
  std::ifstream file(in + "/case.txt");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    c[name] = std::vector<double>(std::istream_iterator<double>(words), {});
  }
  const auto number = [&](const char* name) { return static_cast<int>(c.at(name).at(0)); };
  const int heads = number("heads"), kv_heads = number("kv_heads"), dim = number("dim");
  Array q = load(in + "/q.npy", heads, dim), k = load(in + "/k.npy", kv_heads, dim),
        v = load(in + "/v.npy", kv_heads, dim);

  Array o{heads, q.tokens, dim};
  for (int head = 0; head < heads; ++head)
    for (int i = 0; i < q.tokens; ++i) {
      const int kv_head = head / (heads / kv_heads);
      std::vector<double> s(static_cast<std::size_t>(k.tokens));
      for (int j = 0; j < k.tokens; ++j)
        for (int d = 0; d < dim; ++d) s[j] += c["scale"][0] * q.row(head, i)[d] * k.row(kv_head, j)[d];
      const double m = *std::max_element(s.begin(), s.end());
      double l = 0;
      for (double& x : s) l += x = std::exp(x - m);
      for (int j = 0; j < k.tokens; ++j)
        for (int d = 0; d < dim; ++d)
          o.row(head, i)[d] += static_cast<float>(s[j] / l * v.row(kv_head, j)[d]);
    }
  save(out + "/out.npy", o);
}
