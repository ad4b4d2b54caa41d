"""Every test that SECURITY.md leans on is there, under that name: claims.py ROOT"""
import os, re, sys

ROOT = sys.argv[1]
with open(os.path.join(ROOT, 'SECURITY.md'), encoding='utf-8') as f:
    rows = [line.split('|')[2] for line in f if line.startswith('| ') and '`tests/' in line]
n, lost = 0, []
for row in rows:
    text = ''
    for word in re.findall(r'`([^`]+)`', row):
        if '/' in word:
            with open(os.path.join(ROOT, word), encoding='utf-8') as f:
                text = f.read()
        else:
            n += 1
            if not re.search(rf'\w\({word}[,)]|^def {word}\(p\)', text, re.M):
                lost.append(word)
for name in lost:
    print(f'SECURITY.md: leans on {name}, which is no test')
print(f'{n} tests')
sys.exit(bool(lost) or n < 30)
